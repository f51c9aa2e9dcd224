//! Decides, by regular checks of a connection's counters, whether the connection is idle, stalled or flooding.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::connection::{Connection, Order};
use crate::admission::limits::Limits;

/// Time in which a client that floods the server may still read the error before the server closes its connection.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Time between the order to close a connection and its cut, for a connection without an open request. A client needs
/// less time to acknowledge the server's GOAWAY, or to read the end of the connection.
const CLOSING: Duration = Duration::from_secs(3);

/// The client's progress: how many bytes the client had read, or sent, at a point in time, and that time. Once the
/// client has read, or sent, enough more bytes, the current number and time replace the pair.
#[derive(Debug, Default)]
struct Progress(Option<(u64, Instant)>);

impl Progress {
    fn is_stalled(&mut self, count: u64, now: Instant, limits: &Limits) -> bool {
        match self.0 {
            Some((mark, since)) if count.abs_diff(mark) < limits.least_bytes() => {
                now.duration_since(since) > limits.stall_timeout
            }
            _ => {
                self.0 = Some((count, now));
                false
            }
        }
    }
}

/// Times and counts of one connection that the sweeper of connections keeps from one check to the next.
#[derive(Debug)]
pub struct Watch {
    is_http: bool,
    begun: Instant,
    // The time from which on the connection is too old; None if it may get any age.
    aged_at: Option<Instant>,
    // The time of the first check that found the connection too old, and told its client. Its grace begins then.
    told_at: Option<Instant>,
    writing: Progress,
    // The client's progress in sending an HTTP/2 frame of which only a part has come.
    reading: Progress,
    // The number of served requests, the number of received bytes, and the time when the sweeper first saw the
    // connection without a request.
    idle: Option<(u64, u64, Instant)>,
    // The time of the sweeper's first check that found a part of the next request's head.
    head: Option<Instant>,
    // The time of the sweeper's first check that found a flood, or found the order to close the connection.
    ending: Option<Instant>,
}

impl Watch {
    /// Creates the sweeper's record of a new connection.
    #[must_use]
    pub fn new(is_http: bool, limits: &Limits, now: Instant) -> Self {
        let (writing, reading) = (Progress::default(), Progress::default());
        // A tenth more or less, so that connections that began together do not end together. Source: gRPC's proposal A9.
        let aged_at = limits.max_age.and_then(|age| now.checked_add(age.mul_f64(0.9 + 0.2 * fastrand::f64())));
        Watch { is_http, begun: now, aged_at, told_at: None, writing, reading, idle: None, head: None, ending: None }
    }

    /// Whether the connection is of the HTTP port.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.is_http
    }

    /// Returns the time since when the connection has been idle, as the sweeper saw it; `None` if it is in use, or may
    /// have been used since the sweeper's last check.
    #[must_use]
    pub fn idle_since(&self, connection: &Connection) -> Option<Instant> {
        let is_used = connection.num_open() > 0 || connection.owed() > 0 || connection.is_blocked.load(Relaxed);
        // Of an HTTP connection, has_part() tells of the head of its last request.
        if is_used || (!self.is_http && connection.has_part()) || connection.order() > Order::Drain {
            return None;
        }
        let (read, served) = (connection.read.load(Relaxed), connection.served.load(Relaxed));
        match self.idle {
            Some((known, bytes, since)) if bytes == read && known == if self.is_http { served } else { read } => {
                Some(if served == 0 && self.is_http { self.begun } else { since })
            }
            _ => None,
        }
    }

    /// Returns the order that ends an idle connection.
    #[must_use]
    pub fn ending(&self, connection: &Connection) -> Order {
        // hyper does not end a connection that has sent nothing yet.
        if self.is_http && connection.served.load(Relaxed) == 0 { Order::Cut } else { Order::Close }
    }

    /// Checks a connection's counters and its age; returns the order for the task that serves the connection.
    pub fn look(&mut self, connection: &Connection, limits: &Limits, now: Instant) -> Order {
        self.by_use(connection, limits, now).max(self.by_age(connection, limits, now))
    }

    fn by_age(&mut self, connection: &Connection, limits: &Limits, now: Instant) -> Order {
        if self.aged_at.is_none_or(|at| now < at) {
            return Order::Serve;
        }
        let told = now.duration_since(*self.told_at.get_or_insert(now));
        if limits.max_age_grace.is_some_and(|grace| told > grace) {
            return if connection.num_open() > 0 { Order::Cut } else { self.ending(connection) };
        }
        // HTTP/1.1 has no GOAWAY: a connection that was closed now might have a request on its way.
        if self.is_http && !connection.is_http2() { Order::Drain } else { Order::Close }
    }

    fn by_use(&mut self, connection: &Connection, limits: &Limits, now: Instant) -> Order {
        if connection.flood().is_some() && now.duration_since(*self.ending.get_or_insert(now)) > LAST_WORD {
            return Order::Cut;
        }
        let (read, written) = (connection.read.load(Relaxed), connection.written.load(Relaxed));
        if connection.is_blocked.load(Relaxed) || connection.owed() > 0 {
            if self.writing.is_stalled(written, now, limits) {
                return Order::Cut;
            }
            self.idle = None;
            return Order::Serve;
        }
        self.writing = Progress::default();
        if self.is_http && !connection.is_http2() || !connection.has_part() {
            self.reading = Progress::default();
        } else if self.reading.is_stalled(read, now, limits) {
            return Order::Cut;
        }
        if connection.num_open() > 0 {
            self.idle = None;
            return Order::Serve;
        }
        if connection.order() == Order::Close && now.duration_since(*self.ending.get_or_insert(now)) > CLOSING {
            return Order::Cut;
        }
        // Small gRPC requests are answered without being counted as open, so a gRPC connection counts as idle only
        // while no bytes arrive.
        let served = if self.is_http { connection.served.load(Relaxed) } else { read };
        let (bytes, since) = match self.idle {
            Some((known, bytes, since)) if known == served => (bytes, since),
            _ => {
                self.idle = Some((served, read, now));
                self.head = None;
                (read, now)
            }
        };
        if !self.is_http {
            let is_over = limits.grpc_keep_alive.is_some_and(|time| now.duration_since(since) > time);
            return if is_over { Order::Close } else { Order::Serve };
        }
        let (from, time) = match (served, read == bytes) {
            (0, _) => (self.begun, limits.head_timeout),
            (_, true) => (since, limits.keep_alive),
            // A part of the next request's head has come: the limit for a head runs from then on.
            (_, false) => (*self.head.get_or_insert(now), limits.head_timeout),
        };
        let waited = now.duration_since(from);
        if waited <= time {
            Order::Serve
        } else if read == bytes && served > 0 || connection.is_http2() {
            // On `Close`, hyper ends an idle connection, and an HTTP/2 connection gets GOAWAY. If hyper still waits for the body of an answered request, the
            // sweeper later cuts the connection.
            Order::Close
        } else {
            Order::Cut
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            stall_timeout: Duration::from_secs(4),
            head_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(1),
            ..Limits::default()
        }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn an_idle_http_connection_is_closed_and_a_dribbled_head_is_cut() {
        let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits()));
        let mut watch = Watch::new(true, &limits(), start);
        assert_eq!(watch.look(&connection, &limits(), at(start, 1)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 3)), Order::Cut);
        drop(connection.open());
        let mut watch = Watch::new(true, &limits(), start);
        assert_eq!(watch.look(&connection, &limits(), at(start, 3)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 5)), Order::Close);
        connection.note_read(1);
        assert_eq!(watch.look(&connection, &limits(), at(start, 6)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 8)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 9)), Order::Cut);
    }

    #[test]
    fn a_head_that_is_dribbled_is_cut_soon_however_long_a_connection_may_be_idle() {
        let limits = Limits { keep_alive: Duration::from_secs(620), ..limits() };
        let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits));
        drop(connection.open());
        let mut watch = Watch::new(true, &limits, start);
        let mut look = |seconds| watch.look(&connection, &limits, at(start, seconds));
        assert_eq!([look(1), look(600)], [Order::Serve; 2]);
        for seconds in [601, 602, 603] {
            connection.note_read(1);
            assert_eq!(look(seconds), Order::Serve);
        }
        connection.note_read(1);
        assert_eq!(look(604), Order::Cut);
    }

    #[test]
    fn a_connection_is_idle_since_a_check_that_found_it_so() {
        for is_http in [true, false] {
            let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits()));
            let mut watch = Watch::new(is_http, &limits(), start);
            assert_eq!(watch.idle_since(&connection), None);
            watch.look(&connection, &limits(), at(start, 1));
            assert_eq!(watch.idle_since(&connection), Some(if is_http { start } else { at(start, 1) }));
            assert_eq!(watch.ending(&connection), if is_http { Order::Cut } else { Order::Close });
            connection.note_read(10);
            assert!(!is_http || connection.note_part(10));
            let open = connection.open();
            assert_eq!(watch.idle_since(&connection), None);
            drop(open);
            assert_eq!(watch.idle_since(&connection), None, "the request came after the check");
            watch.look(&connection, &limits(), at(start, 2));
            assert_eq!(watch.idle_since(&connection), Some(at(start, 2)));
            assert_eq!(watch.ending(&connection), Order::Close);
            connection.tell(Order::Close);
            assert_eq!(watch.idle_since(&connection), None, "it is closing already");
        }
    }

    #[test]
    fn an_idle_connection_that_does_not_close_is_cut() {
        for is_http in [true, false] {
            let limits = Limits { grpc_keep_alive: Some(Duration::from_secs(1)), ..limits() };
            let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits));
            drop(connection.open());
            let mut watch = Watch::new(is_http, &limits, start);
            assert_eq!(watch.look(&connection, &limits, at(start, 3)), Order::Serve);
            assert_eq!(watch.look(&connection, &limits, at(start, 5)), Order::Close);
            connection.tell(Order::Close);
            assert_eq!(watch.look(&connection, &limits, at(start, 6)), Order::Close);
            assert_eq!(watch.look(&connection, &limits, at(start, 9)), Order::Close);
            // The connection is not cut while it has an open request.
            let open = connection.open();
            assert_eq!(watch.look(&connection, &limits, at(start, 10)), Order::Serve);
            drop(open);
            assert_eq!(watch.look(&connection, &limits, at(start, 10)), Order::Cut);
        }
    }

    #[test]
    fn a_connection_ends_at_its_age_and_is_cut_after_its_grace() {
        let (age, grace) = (Some(Duration::from_secs(100)), Some(Duration::from_secs(30)));
        let limits = Limits { keep_alive: Duration::from_secs(620), max_age: age, max_age_grace: grace, ..limits() };
        let start = Instant::now();
        for (is_http, is_http2, told) in
            [(true, false, Order::Drain), (true, true, Order::Close), (false, true, Order::Close)]
        {
            let connection = Connection::new(String::new(), &limits);
            drop(connection.open());
            let open = connection.open();
            if is_http && is_http2 {
                connection.set_http2();
            }
            let mut watch = Watch::new(is_http, &limits, start);
            assert_eq!(watch.look(&connection, &limits, at(start, 89)), Order::Serve);
            // The first check may come late, after the process was stopped for a while.
            for late in [0, 500] {
                let mut watch = Watch::new(is_http, &limits, start);
                assert_eq!(watch.look(&connection, &limits, at(start, 110 + late)), told);
                assert_eq!(watch.look(&connection, &limits, at(start, 140 + late)), told);
                assert_eq!(watch.look(&connection, &limits, at(start, 141 + late)), Order::Cut, "a request is open");
            }
            assert_eq!(watch.look(&connection, &limits, at(start, 110)), told);
            drop(open);
            assert_eq!(watch.look(&connection, &limits, at(start, 141)), Order::Close);
        }
        let ends: std::collections::HashSet<_> = (0..50).map(|_| Watch::new(true, &limits, start).aged_at).collect();
        assert!(ends.len() > 40 && ends.iter().flatten().all(|end| (at(start, 90)..=at(start, 110)).contains(end)));
    }

    #[test]
    fn a_client_that_does_not_finish_a_frame_is_cut() {
        let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits()));
        let mut watch = Watch::new(false, &limits(), start);
        let mut look = |seconds| watch.look(&connection, &limits(), at(start, seconds));
        assert_eq!([look(0), look(9)], [Order::Serve; 2]);
        assert!(connection.note_part(1000));
        assert_eq!([look(10), look(13)], [Order::Serve; 2]);
        connection.note_read(5000);
        assert_eq!([look(15), look(19)], [Order::Serve; 2]);
        assert!(connection.note_part(0));
        assert_eq!(look(20), Order::Serve);
        assert!(connection.note_part(1));
        assert_eq!([look(21), look(26)], [Order::Serve, Order::Cut]);
    }

    #[test]
    fn a_client_that_does_not_read_is_cut() {
        let (start, connection) = (Instant::now(), Connection::new(String::new(), &limits()));
        let mut watch = Watch::new(false, &limits(), start);
        let _open = connection.open();
        connection.note_blocked();
        assert_eq!(watch.look(&connection, &limits(), at(start, 0)), Order::Serve);
        connection.note_written(8192);
        connection.note_blocked();
        assert_eq!(watch.look(&connection, &limits(), at(start, 3)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 6)), Order::Serve);
        assert_eq!(watch.look(&connection, &limits(), at(start, 8)), Order::Cut);
    }
}
