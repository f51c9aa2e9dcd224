//! Narrows the HTTP/2 windows of a connection whose large requests are refused, so that the client sends less of a
//! request before the client learns of the refusal.

use std::time::{Duration, Instant};

use super::connection::Connection;

/// Number of bytes of one request that a client may send before the server has read them.
pub const STREAM_WINDOW: u32 = 1 << 20;
/// Size of a request's HTTP/2 window while the server refuses large requests of the connection: one DATA frame of the
/// default size.
const NARROW_WINDOW: u32 = 16 << 10;
/// Once the server has refused no large request of the connection for this time, it sets the windows to their full size
/// again.
const CALM: Duration = Duration::from_secs(1);

/// The HTTP/2 windows for request bodies of one connection. Only the connection's task uses this struct.
#[derive(Debug, Default)]
pub struct RequestWindow {
    // The count of refused large requests to which the windows were last adapted: if the connection's count is higher,
    // the windows must be narrow.
    refused: u64,
    // Time of the last turn that found a new refusal of a large request; None while the windows have their full size.
    last_refusal: Option<Instant>,
}

impl RequestWindow {
    /// Narrows or widens the HTTP/2 windows if that is due: calls `resize` with the new size, and returns whether
    /// `resize` returned true. If it returned false, because the client has not acknowledged the last change, the next
    /// turn calls it again.
    #[must_use]
    pub fn after_turn(&mut self, connection: &Connection, now: Instant, resize: impl FnOnce(u32) -> bool) -> bool {
        let refused = connection.large_refused();
        let is_calm = self.last_refusal.is_some_and(|last| now.duration_since(last) >= CALM);
        if refused != self.refused {
            let is_first = self.last_refusal.is_none();
            if is_first && !resize(NARROW_WINDOW) {
                return false;
            }
            self.refused = refused;
            self.last_refusal = Some(now);
            return is_first;
        }
        let is_wide = is_calm && resize(STREAM_WINDOW);
        if is_wide {
            self.last_refusal = None;
        }
        is_wide
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use crate::admission::limits::Limits;

    /// Calls `after_turn` as at the end of one turn, and returns the window sizes that it passed to `resize`.
    fn turn(window: &mut RequestWindow, connection: &Connection, now: Instant, is_settled: bool) -> Vec<u32> {
        let mut sizes = Vec::new();
        let has_changed = window.after_turn(connection, now, |size| {
            sizes.push(size);
            is_settled
        });
        assert_eq!(has_changed, is_settled && !sizes.is_empty());
        sizes
    }

    #[test]
    fn windows_are_narrow_from_the_first_refusal_until_a_second_after_the_last() {
        let (mut window, connection) = (RequestWindow::default(), Connection::new(String::new(), &Limits::default()));
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(turn(&mut window, &connection, at(0), true).is_empty());
        connection.note_large_refused();
        assert_eq!(
            turn(&mut window, &connection, at(1), false),
            [NARROW_WINDOW],
            "the client has not acknowledged yet"
        );
        assert_eq!(turn(&mut window, &connection, at(2), true), [NARROW_WINDOW]);
        assert!(turn(&mut window, &connection, at(3), true).is_empty());
        connection.note_large_refused();
        assert!(turn(&mut window, &connection, at(900), true).is_empty(), "they are narrow already");
        assert!(turn(&mut window, &connection, at(1_899), true).is_empty());
        assert_eq!(turn(&mut window, &connection, at(1_900), false), [STREAM_WINDOW]);
        assert_eq!(turn(&mut window, &connection, at(1_901), true), [STREAM_WINDOW]);
        assert!(turn(&mut window, &connection, at(9_000), true).is_empty());
    }
}
