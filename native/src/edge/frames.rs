//! Counts the HTTP/2 frames that a connection receives, and ends a flood of frames that carry no part of a request.
//!
//! Such frames make the server work without progress of any request. Source: RFC 9113, sections 4.1, 6 and 10.5.

use std::time::Instant;

use crate::admission::limits::LARGE_HEAD_BYTES;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Number of points of a connection's budget for HTTP/2 frames, at the start and at most. Frames that carry no part of
/// a request cost at least 1 point each; a connection without points is closed.
const ALLOWANCE: u32 = 4096;
/// Number of points of its frame budget that a connection regains each second.
const PER_SECOND: u32 = 100;
/// Points of its frame budget that a connection regains for each request, because its client may send `WINDOW_UPDATE`,
/// `PING` and similar frames with it.
const REQUEST: u32 = 8;
/// A connection regains 1 point of its frame budget for this many bytes of request bodies that it sends, or of answers
/// that it reads.
const PROGRESS_BYTES: usize = 1 << 10;
/// A header block costs 1 point of the frame budget for this many bytes beyond [`LARGE_HEAD_BYTES`]: to decode them
/// costs the server more than to answer a small request, and they are no progress.
const HEADER_BYTES: usize = 1 << 10;
/// Points of the frame budget that a PING or SETTINGS frame costs: the server answers each PING, and updates all
/// streams for a SETTINGS.
const PING_COST: u32 = 4;
const SETTINGS_COST: u32 = 16;
/// A DATA frame of fewer bytes is tiny and costs 1 point of the frame budget, unless the frame ends its stream.
const TINY_BYTES: usize = 64;
/// An `RST_STREAM` for one of this many newest requests costs 1 point of the frame budget more than the connection
/// regained for the request.
const RECENT_STREAMS: u32 = 64;

/// The type of HTTP/2 frame with which a client floods the server, or another kind of flood: TLS records without
/// application data, or unfinished heads and frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flood {
    Data = 1,
    Reset,
    Settings,
    Ping,
    Window,
    /// A flood of large header blocks.
    Headers,
    Other,
    /// A flood of TLS records without application data, which the counter of HTTP/2 frames does not see.
    Tls,
    /// A flood of heads of requests, or HTTP/2 frames, that stay unfinished and exceed the limit on the bytes of such
    /// parts.
    Unfinished,
}

impl Flood {
    /// Returns the flood type with this number; None for any other number, such as 0.
    #[must_use]
    #[inline]
    pub fn of(number: u8) -> Option<Flood> {
        [
            Flood::Data,
            Flood::Reset,
            Flood::Settings,
            Flood::Ping,
            Flood::Window,
            Flood::Headers,
            Flood::Other,
            Flood::Tls,
            Flood::Unfinished,
        ]
        .into_iter()
        .find(|flood| number != 0 && *flood as u8 == number)
    }
}

/// Limits floods of HTTP/2 frames on one connection: has the points that are left of the connection's frame budget, and
/// how much of the current frame has arrived.
#[derive(Debug)]
pub struct FrameMeter {
    preface_left: usize,
    // Number of payload bytes of the current HTTP/2 frame, and the number of these bytes that have not come yet.
    payload: usize,
    payload_left: usize,
    // Whether more frames of the current frame's header block must follow; number of payload bytes of the block's
    // frames before the current one.
    is_in_block: bool,
    block: usize,
    head: [u8; HEAD_BYTES],
    head_filled: usize,
    left: u32,
    refilled: Instant,
    last_stream: u32,
    // Number of bytes of bodies and answers for which the connection has not yet regained a point of its frame budget;
    // below PROGRESS_BYTES.
    progress: usize,
}

impl FrameMeter {
    /// Returns the frame counter of a new connection that has received no byte yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        FrameMeter {
            preface_left: PREFACE_BYTES,
            payload: 0,
            payload_left: 0,
            is_in_block: false,
            block: 0,
            head: [0; HEAD_BYTES],
            head_filled: 0,
            left: ALLOWANCE,
            refilled: now,
            last_stream: 0,
            progress: 0,
        }
    }

    /// Returns how many payload bytes of the current frame have not come yet.
    #[must_use]
    #[inline]
    pub fn payload_left(&self) -> usize {
        self.payload_left
    }

    /// Returns how many bytes have come of a frame, or of a header block, whose rest has not come yet.
    #[must_use]
    #[inline]
    pub fn part(&self) -> usize {
        let is_unfinished = self.payload_left > 0 || self.is_in_block;
        self.head_filled + if is_unfinished { self.block + self.payload - self.payload_left } else { 0 }
    }

    /// Counts bytes that the server wrote to the socket; the connection regains 1 point of its frame budget for each
    /// `PROGRESS_BYTES` of them.
    #[inline]
    pub fn note_written(&mut self, size: usize) {
        self.give_back_for(size);
    }

    /// Counts the frames in received bytes; returns the number of frame headers that are complete.
    ///
    /// # Errors
    /// The connection has sent too many frames without progress.
    pub fn take(&mut self, mut data: &[u8]) -> Result<usize, Flood> {
        let mut frames = 0;
        loop {
            let skipped = data.len().min(self.preface_left + self.payload_left);
            // `preface_left` and `payload_left` are not both above 0, so `skipped` is subtracted from one of them.
            self.preface_left -= skipped.min(self.preface_left);
            self.payload_left -= skipped.min(self.payload_left);
            data = &data[skipped..];
            if data.is_empty() {
                return Ok(frames);
            }
            let filled = self.head_filled;
            let more = data.len().min(HEAD_BYTES - filled);
            self.head[filled..filled + more].copy_from_slice(&data[..more]);
            self.head_filled += more;
            data = &data[more..];
            if self.head_filled < HEAD_BYTES {
                return Ok(frames);
            }
            self.head_filled = 0;
            frames += 1;
            self.frame()?;
        }
    }

    /// Subtracts or adds points of the frame budget for a frame, as soon as all 9 bytes of its header have arrived in
    /// `head`.
    fn frame(&mut self) -> Result<(), Flood> {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let size = u32::from_be_bytes([0, a, b, c]) as usize;
        // The first bit of the stream number is reserved, so it is ignored.
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        self.block = if self.is_in_block { self.block + self.payload } else { 0 };
        self.is_in_block = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS == 0;
        (self.payload, self.payload_left) = (size, size);
        if matches!(kind, HEADERS | CONTINUATION) {
            let cost = |bytes: usize| bytes.saturating_sub(LARGE_HEAD_BYTES) / HEADER_BYTES;
            let more = cost(self.block + size) - cost(self.block);
            self.spend(u32::try_from(more).unwrap_or(u32::MAX), Flood::Headers)?;
        }
        match kind {
            HEADERS if stream > self.last_stream => {
                self.last_stream = stream;
                self.give_back(REQUEST);
                Ok(())
            }
            DATA if size >= TINY_BYTES || flags & END_STREAM != 0 => {
                self.give_back_for(size);
                Ok(())
            }
            DATA => self.spend(1, Flood::Data),
            RST_STREAM if stream.saturating_add(2 * RECENT_STREAMS) > self.last_stream => {
                self.spend(REQUEST + 1, Flood::Reset)
            }
            RST_STREAM => self.spend(1, Flood::Reset),
            SETTINGS if flags & ACK == 0 => {
                // A SETTINGS frame with many values costs more points of the connection's frame budget than a short
                // one.
                let values = u32::try_from(size / 6 / 16).unwrap_or(u32::MAX);
                self.spend(SETTINGS_COST.saturating_add(values), Flood::Settings)
            }
            PING => self.spend(PING_COST, Flood::Ping),
            WINDOW_UPDATE => self.spend(1, Flood::Window),
            _ => self.spend(1, Flood::Other),
        }
    }

    fn give_back_for(&mut self, size: usize) {
        self.progress += size;
        if self.progress >= PROGRESS_BYTES {
            let gained = self.progress / PROGRESS_BYTES;
            self.progress %= PROGRESS_BYTES;
            self.give_back(u32::try_from(gained).unwrap_or(u32::MAX));
        }
    }

    fn give_back(&mut self, gained: u32) {
        self.left = self.left.saturating_add(gained).min(ALLOWANCE);
    }

    fn spend(&mut self, cost: u32, flood: Flood) -> Result<(), Flood> {
        if self.left < cost {
            // The clock is read only here, when a connection has too few points left of its frame budget, so that
            // well-behaved connections never cause a clock read.
            let now = Instant::now();
            let seconds = now.duration_since(self.refilled).as_secs();
            if seconds > 0 {
                self.refilled = now;
                self.give_back(u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND));
            }
        }
        self.left = self.left.checked_sub(cost).ok_or(flood)?;
        Ok(())
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut out = vec![size[1], size[2], size[3], kind, flags];
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(payload);
        out
    }

    fn begun() -> FrameMeter {
        let mut meter = FrameMeter::new(Instant::now());
        meter.take(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        meter
    }

    /// Gives the same bytes to a meter up to `most` times. Returns how many times the meter accepted them, and the type
    /// of flood if it then refused them.
    fn taken(meter: &mut FrameMeter, bytes: &[u8], most: usize) -> (usize, Option<Flood>) {
        for count in 0..most {
            if let Err(flood) = meter.take(bytes) {
                return (count, Some(flood));
            }
        }
        (most, None)
    }

    #[test]
    fn frames_without_progress_are_bounded_by_their_cost() {
        for (bytes, most, flood) in [
            (frame(PING, 0, 0, &[0; 8]), 1024, Flood::Ping),
            (frame(SETTINGS, 0, 0, &[]), 256, Flood::Settings),
            (frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), 4096, Flood::Window),
            (frame(DATA, 0, 1, &[0]), 4096, Flood::Data),
            (frame(2, 0, 3, &[0; 5]), 4096, Flood::Other),
            (frame(0x77, 0, 0, &[]), 4096, Flood::Other),
        ] {
            let (count, ended) = taken(&mut begun(), &bytes, 10_000);
            assert_eq!(ended, Some(flood));
            assert!((most..=most + 200).contains(&count), "{flood:?} {count}");
        }
    }

    /// Sends requests whose header blocks have this many bytes, in frames of up to 16 KB, until the meter ends the flood.
    fn header_blocks(size: usize, most: u32) -> (u32, Option<Flood>) {
        let mut meter = begun();
        for request in 0..most {
            let stream = 2 * request + 1;
            for at in (0..size).step_by(16 << 10) {
                let end = size.min(at + (16 << 10));
                let kind = if at == 0 { HEADERS } else { CONTINUATION };
                let flags = END_STREAM | if end == size { END_HEADERS } else { 0 };
                if let Err(flood) = meter.take(&frame(kind, flags, stream, &vec![0; end - at])) {
                    return (request, Some(flood));
                }
            }
        }
        (most, None)
    }

    #[test]
    fn large_header_blocks_are_a_flood_and_those_of_clients_are_not() {
        for size in [100, 4 << 10, 8 << 10, 12 << 10] {
            assert_eq!(header_blocks(size, 20_000), (20_000, None), "{size}");
        }
        // A block of 65 KB costs 61 points, and 3 for its CONTINUATION frames but the first; its request regains 8.
        let (requests, flood) = header_blocks(65 << 10, 20_000);
        assert_eq!(flood, Some(Flood::Headers));
        assert!((60..100).contains(&requests), "{requests}");
    }

    #[test]
    fn requests_pay_for_what_comes_with_them() {
        let mut meter = begun();
        for stream in (1..200_001).step_by(2) {
            let mut sent = frame(HEADERS, 4, stream, b"head");
            for more in [
                frame(DATA, END_STREAM, stream, b"body"),
                frame(PING, 0, 0, &[0; 8]),
                frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9]),
                frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 9]),
            ] {
                sent.extend(more);
            }
            assert!(meter.take(&sent).is_ok());
        }
    }

    #[test]
    fn windows_for_answers_that_were_taken_are_progress() {
        let mut meter = begun();
        let mut both = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 64, 0]);
        both.extend(frame(WINDOW_UPDATE, 0, 1, &[0, 0, 64, 0]));
        for _ in 0..100_000 {
            meter.note_written(16 << 10);
            assert!(meter.take(&both).is_ok());
        }
        let byte = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
        let flood = (0..100_000).find_map(|_| {
            meter.note_written(10);
            meter.take(&byte).err()
        });
        assert_eq!(flood, Some(Flood::Window));
    }

    #[test]
    fn requests_that_are_cancelled_at_once_are_a_flood_and_old_ones_are_not() {
        let cancel = |stream: u32| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        let mut meter = begun();
        let flood = (1..100_001).step_by(2).find_map(|stream| {
            let mut sent = frame(HEADERS, 5, stream, b"head");
            sent.extend(cancel(stream));
            meter.take(&sent).err()
        });
        assert_eq!(flood, Some(Flood::Reset));
        let mut meter = begun();
        for stream in (1001..200_001).step_by(2) {
            let mut sent = frame(HEADERS, 5, stream, b"head");
            sent.extend(cancel(stream - 1000));
            assert!(meter.take(&sent).is_ok());
        }
    }

    #[test]
    fn the_part_that_has_come_is_known() {
        let mut meter = begun();
        let mut part = |bytes: &[u8]| {
            meter.take(bytes).unwrap();
            meter.part()
        };
        let sent = frame(DATA, 0, 1, &[7; 1000]);
        assert_eq!([part(&sent[..5]), part(&sent[5..9]), part(&sent[9..509]), part(&sent[509..])], [5, 0, 500, 0]);
        assert_eq!([part(&frame(HEADERS, 0, 1, &[7; 30])), part(&frame(CONTINUATION, 0, 1, &[7; 20])[..19])], [30, 40]);
        assert_eq!([part(&[7; 10]), part(&frame(CONTINUATION, END_HEADERS, 1, &[7; 20]))], [50, 0]);
    }

    #[test]
    fn bytes_are_understood_however_they_are_cut() {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frame(HEADERS, 4, 1, &[7; 100]));
        // The server must ignore the reserved bit of the stream number.
        sent.extend(frame(HEADERS, 4, 3 | 1 << 31, &[7; 300]));
        sent.extend(frame(PING, 0, 0, &[0; 8]));
        for size in [1, 2, 5, 9, 10, 23, 24, 25, 1000] {
            let mut meter = FrameMeter::new(Instant::now());
            for part in sent.chunks(size) {
                assert!(meter.take(part).is_ok());
            }
            assert_eq!((meter.last_stream, meter.left, meter.payload_left()), (3, ALLOWANCE - PING_COST, 0));
        }
    }
}
