//! Decides everything about compression, on both wires: inflates compressed requests, chooses the compression of
//! answers, and compresses them. Answers of the control servers are forwarded as they are.
//!
//! An answer that is ready to be sent is an [`Encoded`]. Only this module makes one, and nothing takes one as the input
//! of a compression, so no answer is compressed twice.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status as Progress};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::admission::limits::{INLINE_BYTES, Limits};
use crate::forms::Answered;

/// Metadata of a gRPC message that names its compression.
pub const MESSAGE_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// Maximal ratio of a body's inflated size to its compressed size, for bodies that inflate to more than
/// `UNJUDGED_BYTES`. JSON of ids has about 10, an attack up to 1032.
pub const RATIO: usize = 100;
const UNJUDGED_BYTES: usize = 4 << 20;

/// Returns the most bytes to which a body of `size` bytes may inflate.
pub fn most_inflated(size: usize) -> usize {
    UNJUDGED_BYTES.max(size.saturating_mul(RATIO))
}
/// Maximal number of members of a compressed body, which may be a sequence of gzip files: each costs time, even if it is
/// empty.
const MAX_MEMBERS: usize = 1000;
/// Number of inflated bytes that take as long as the start of one more member.
const MEMBER_BYTES: usize = 4 << 10;
/// A thread of connections tries to inflate a body of at most this size, if the body does not tell its inflated size.
const TRIED_BYTES: usize = 16 << 10;
/// A thread of connections compresses an answer of at most this size; larger ones are compressed on the pool for large
/// work.
const SMALL_ANSWER_BYTES: usize = 16 << 10;
/// Compression levels above 1 take longer, and save little, because the bytes of answers are numbers.
const LEVEL: u32 = 1;
/// Maximal number of compressors that are kept for the next answers; each takes 300 KB.
const MAX_KEPT: usize = 8;

/// A compression format of bodies and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// The gzip format of RFC 1952.
    Gzip,
    /// The zlib format of RFC 1950, which HTTP and gRPC name "deflate".
    Deflate,
}

impl Coding {
    /// Returns the name of the format in headers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
        }
    }

    /// Returns the format with this name in HTTP; None for another name.
    fn named(name: &[u8]) -> Option<Self> {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if is(b"gzip") || is(b"x-gzip") { Some(Coding::Gzip) } else { is(b"deflate").then_some(Coding::Deflate) }
    }

    fn inflater(self) -> Decompress {
        match self {
            Coding::Gzip => Decompress::new_gzip(15),
            Coding::Deflate => Decompress::new(true),
        }
    }

    fn compressor(self) -> Compress {
        match self {
            Coding::Gzip => Compress::new_gzip(Compression::new(LEVEL), 15),
            Coding::Deflate => Compress::new(Compression::new(LEVEL), true),
        }
    }
}

/// The reason why a compressed body is not inflated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The data is invalid; the text ends the sentence "The body ...".
    Invalid(String),
    /// The inflated body is larger than the limit, which the variant holds.
    Bytes(usize),
    /// The body inflates to too many times its size.
    Ratio,
    /// The inflated bytes exceed the limit on bytes in flight.
    InFlight,
    /// The body takes longer to inflate than the thread may work.
    Work,
}

/// A compressed body, and the limits on its inflated form.
#[derive(Clone)]
pub struct Compressed {
    /// The format of the data.
    pub coding: Coding,
    pub data: Bytes,
    /// Number of zeros before the inflated bytes, for the prefix of a gRPC message.
    pub start: usize,
    /// Maximal number of inflated bytes.
    pub limit: usize,
}

impl Compressed {
    /// Inflates the body on a thread of connections; None if that would take too long, or if the body is invalid.
    #[must_use]
    pub fn small(&self) -> Option<Vec<u8>> {
        let is_small = self.told().map_or(self.data.len() <= TRIED_BYTES, |told| told <= INLINE_BYTES);
        if !is_small || self.data.len() > INLINE_BYTES {
            return None;
        }
        // The bytes are not counted against the limit on bytes in flight: each thread holds one such body at a time, and
        // a request that waits counts its body.
        self.inflate(INLINE_BYTES.min(self.limit), |_| true).ok()
    }

    /// Returns the inflated size that the body's last bytes tell; a body of several gzip members tells another one.
    fn told(&self) -> Option<usize> {
        let last = self.data.last_chunk::<4>().filter(|_| self.coding == Coding::Gzip)?;
        usize::try_from(u32::from_le_bytes(*last)).ok()
    }

    /// Inflates the body.
    ///
    /// `work`: number of bytes that the thread may inflate. `has_room`: counts the bytes that the result will hold, and
    /// says whether it may; called before the memory is taken.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn inflate(&self, work: usize, mut has_room: impl FnMut(usize) -> bool) -> Result<Vec<u8>, Fault> {
        let (data, name) = (&self.data[..], self.coding.name());
        // With one byte more than it may have, a body that is too large is noticed.
        let most = self.limit.min(most_inflated(data.len())).min(work) + 1;
        let mut size = self.told().unwrap_or(4 * data.len()).clamp(256, data.len().saturating_mul(RATIO).max(256));
        let (mut at, mut members) = (0, 1);
        let mut decoder = self.coding.inflater();
        let mut out = Vec::new();
        loop {
            if out.len() == out.capacity() {
                size = size.min(most);
                if !has_room(self.start + size) {
                    return Err(Fault::InFlight);
                }
                out.reserve_exact(self.start + size - out.len());
                out.resize(out.len().max(self.start), 0);
                size = size.saturating_mul(2);
            }
            let before = decoder.total_in();
            let progress = decoder
                .decompress_vec(&data[at..], &mut out, FlushDecompress::None)
                .map_err(|error| Fault::Invalid(format!("is not valid {name} data: {}", reason(&error))))?;
            at += usize::try_from(decoder.total_in() - before).unwrap_or(usize::MAX);
            let inflated = out.len() - self.start;
            if inflated > self.limit {
                return Err(Fault::Bytes(self.limit));
            }
            if inflated > UNJUDGED_BYTES && inflated > data.len().saturating_mul(RATIO) {
                return Err(Fault::Ratio);
            }
            if inflated.saturating_add((members - 1) * MEMBER_BYTES) > work {
                return Err(Fault::Work);
            }
            if progress == Progress::StreamEnd {
                if at == data.len() {
                    return Ok(out);
                }
                members += 1;
                if members > MAX_MEMBERS {
                    return Err(Fault::Invalid(format!("consists of more than {MAX_MEMBERS} {name} members.")));
                }
                decoder = self.coding.inflater();
            } else if at == data.len() && out.len() < out.capacity() {
                return Err(Fault::Invalid(format!("is not valid {name} data: it ends early")));
            }
        }
    }
}

/// Returns the reason why data is invalid, as Python's zlib words it.
fn reason(error: &flate2::DecompressError) -> Cow<'static, str> {
    if error.needs_dictionary().is_some() {
        return "Error 2 while decompressing data".into();
    }
    format!("Error -3 while decompressing data: {}", error.message().unwrap_or("invalid input data")).into()
}

/// Returns the compression of an HTTP request's body; None if it is plain.
///
/// # Errors
/// The server does not inflate this compression; the text tells the client.
pub fn body_coding(headers: &HeaderMap) -> Result<Option<Coding>, String> {
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let mut name = first.as_bytes().trim_ascii().to_ascii_lowercase();
    for value in values {
        name.extend_from_slice(b", ");
        name.extend_from_slice(&value.as_bytes().trim_ascii().to_ascii_lowercase());
    }
    if name.is_empty() || name == b"identity" {
        return Ok(None);
    }
    Coding::named(&name)
        .map(Some)
        .ok_or_else(|| format!("Content-Encoding {} is not supported; send gzip, deflate or none.", quoted(&name)))
}

/// Returns a text in quotes, as Python's `ascii` does.
fn quoted(text: &[u8]) -> String {
    let quote = if text.contains(&b'\'') && !text.contains(&b'"') { '"' } else { '\'' };
    let mut quoted = String::from(quote);
    for byte in text {
        match byte {
            b'\t' => quoted.push_str("\\t"),
            b'\\' => quoted.push_str("\\\\"),
            b'\'' if quote == '\'' => quoted.push_str("\\'"),
            b' '..=b'~' => quoted.push(char::from(*byte)),
            _ => {
                let _ = write!(quoted, "\\x{byte:02x}");
            }
        }
    }
    quoted.push(quote);
    quoted
}

/// Returns the compression that a call's metadata names; None for none.
#[must_use]
pub fn message_coding(headers: &HeaderMap) -> Option<Coding> {
    match headers.get(MESSAGE_ENCODING)?.as_bytes() {
        b"gzip" => Some(Coding::Gzip),
        b"deflate" => Some(Coding::Deflate),
        _ => None,
    }
}

/// The compressions that a client accepts for the answer to its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The compression that the client prefers; None if it prefers, or accepts, a plain answer only.
    coding: Option<Coding>,
    /// The client does not accept a plain answer.
    is_required: bool,
    /// The client names this compression, and nothing else.
    is_alone: bool,
}

impl Accepted {
    /// The answer must be compressed in this format.
    #[must_use]
    pub fn only(coding: Coding) -> Self {
        Accepted { coding: Some(coding), is_required: true, is_alone: true }
    }

    /// Returns whether the client accepts only a compressed answer.
    #[must_use]
    pub fn is_required(self) -> bool {
        self.is_required
    }

    /// Reads the Accept-Encoding headers of a request. Source: RFC 9110, section 12.5.3. Choices with a malformed weight
    /// are ignored.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        if !headers.contains_key(ACCEPT_ENCODING) {
            return Accepted::default();
        }
        let (mut gzip, mut deflate, mut identity, mut others) = (None, None, None, None);
        let mut count = 0;
        let lines = headers.get_all(ACCEPT_ENCODING).iter();
        for choice in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
            let mut parts = choice.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let Some(weight) = weight(parts) else { continue };
            if name.is_empty() {
                continue;
            }
            count += 1;
            match (Coding::named(name), name) {
                (Some(Coding::Gzip), _) => gzip = Some(weight),
                (Some(Coding::Deflate), _) => deflate = Some(weight),
                (None, b"*") => others = Some(weight),
                (None, name) if name.eq_ignore_ascii_case(b"identity") => identity = Some(weight),
                _ => {}
            }
        }
        // A client that does not name "identity" accepts it least.
        let plain = identity.or(others).unwrap_or(1);
        let (gzip, deflate) = (gzip.or(others).unwrap_or(0), deflate.or(others).unwrap_or(0));
        let (coding, best) = if gzip >= deflate { (Coding::Gzip, gzip) } else { (Coding::Deflate, deflate) };
        Accepted {
            coding: (best > 0 && best >= plain).then_some(coding),
            is_required: plain == 0,
            is_alone: count == 1 && others.is_none(),
        }
    }

    /// Returns the compression of an answer; None for none.
    ///
    /// JSON is compressed from a certain size on. Binary tensors are so only if the client names one compression alone,
    /// as tritonclient does, and if that saves enough: most libraries list what they know with each request, and numbers
    /// take 10 to 30 times as long to compress as to look up.
    fn choose(self, body: &[u8], is_json: bool, limits: &Limits) -> Option<Coding> {
        let saves = || body.len() >= limits.gzip_min_bytes && (is_json || self.is_alone && is_compressible(body));
        self.coding.filter(|_| self.is_required || limits.gzip_min_bytes > 0 && saves())
    }
}

/// Returns the weight of a choice, in thousandths; None if it is malformed.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let value = parameters.find_map(|one| one.strip_prefix(b"q=").or_else(|| one.strip_prefix(b"Q=")));
    let Some(value) = value else { return Some(1000) };
    let (whole, digits) = match value {
        [whole] => (whole, &[][..]),
        [whole, b'.', digits @ ..] if digits.len() <= 3 => (whole, digits),
        _ => return None,
    };
    if !matches!(whole, b'0' | b'1') || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |place: usize| u16::from(digits.get(place).map_or(0, |digit| digit - b'0'));
    let weight = 1000 * u16::from(whole - b'0') + 100 * digit(0) + 10 * digit(1) + digit(2);
    (weight <= 1000).then_some(weight)
}

/// Says whether compression probably saves at least a sixth of binary data: whether the bytes of a sample have an
/// entropy of at most 6.5 bits. Trained weights have some 7.3, and compression saves 7 % of them.
fn is_compressible(body: &[u8]) -> bool {
    const PARTS: usize = 16;
    const PART_BYTES: usize = 64;
    let mut counts = [0_u16; 256];
    let mut sum = 0_u16;
    for part in 0..PARTS {
        let start = body.len() / PARTS * part;
        for byte in &body[start..body.len().min(start + PART_BYTES)] {
            counts[usize::from(*byte)] += 1;
            sum += 1;
        }
    }
    let entropy: f32 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f32::from(*count) * (f32::from(sum) / f32::from(*count)).log2())
        .sum();
    entropy <= 6.5 * f32::from(sum)
}

/// The body of an answer as it is sent: plain, or compressed.
#[derive(Clone, Debug)]
pub struct Encoded {
    body: Bytes,
    coding: Option<Coding>,
    // The compression that the answer still needs, on a thread of the pool for large work.
    due: Option<Coding>,
    // Whether other clients get another form of the answer, because they accept other compressions.
    is_varying: bool,
}

impl Encoded {
    /// An answer that is sent as it is.
    #[must_use]
    pub fn plain(body: Bytes) -> Self {
        Encoded { body, coding: None, due: None, is_varying: false }
    }

    /// Returns whether the answer still needs its compression.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Returns the answer to be sent plain although it should be compressed, with the same bytes.
    #[must_use]
    pub fn left_plain(self) -> Self {
        Encoded { due: None, ..self }
    }

    /// Returns the number of bytes that are sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Returns the compression of the bytes that are sent; None if they are plain.
    #[must_use]
    pub fn coding(&self) -> Option<Coding> {
        self.coding
    }

    /// Returns the bytes to send, and a function that adds the headers of HTTP that say how they are compressed.
    pub fn into_http(self) -> (Bytes, impl FnOnce(&mut HeaderMap)) {
        let (coding, is_varying) = (self.coding, self.is_varying);
        let mark = move |headers: &mut HeaderMap| {
            if let Some(coding) = coding {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            }
            if is_varying {
                headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
            }
        };
        (self.body, mark)
    }

    /// Returns the bytes to send, and the flag of a gRPC message that says whether they are compressed; the answer's
    /// head, which [`mark_message`] completes, says how.
    #[must_use]
    pub fn into_grpc(self) -> (Bytes, u8) {
        (self.body, u8::from(self.coding.is_some()))
    }
}

/// Adds to the head of a gRPC answer the compression of its message.
pub fn mark_message(headers: &mut HeaderMap, coding: Option<Coding>) {
    if let Some(coding) = coding {
        headers.insert(MESSAGE_ENCODING, HeaderValue::from_static(coding.name()));
    }
}

/// Compressors that no answer uses now.
#[derive(Default)]
pub struct Compressors(Mutex<Vec<(Coding, Compress)>>);

impl Compressors {
    /// Takes the body of an answer, and compresses it if the client wants that. `may_work`: the thread may take long;
    /// otherwise a large body is left for [`Compressors::finish`].
    #[must_use]
    pub fn encode(&self, answered: &mut Answered, accepted: Accepted, may_work: bool, limits: &Limits) -> Encoded {
        let (body, is_json) = (std::mem::take(&mut answered.body), answered.json_length.is_none());
        let coding = accepted.choose(&body, is_json, limits);
        let is_json_of_size = is_json && limits.gzip_min_bytes > 0 && body.len() >= limits.gzip_min_bytes;
        let is_varying = coding.is_some() || is_json_of_size;
        let encoded = Encoded { body, coding: None, due: coding, is_varying };
        if may_work || encoded.len() <= SMALL_ANSWER_BYTES { self.finish(encoded) } else { encoded }
    }

    /// Compresses an answer that still needs it.
    #[must_use]
    pub fn finish(&self, encoded: Encoded) -> Encoded {
        let Some(coding) = encoded.due else { return encoded };
        let body = self.compress(coding, &encoded.body).into();
        Encoded { body, coding: Some(coding), due: None, ..encoded }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(Coding, Compress)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compress(&self, coding: Coding, body: &[u8]) -> Vec<u8> {
        let kept = {
            let mut kept = self.kept();
            let place = kept.iter().position(|(one, _)| *one == coding);
            place.map(|place| kept.swap_remove(place).1)
        };
        let mut compressor = kept.unwrap_or_else(|| coding.compressor());
        let mut out = Vec::with_capacity(body.len() / 2 + 64);
        loop {
            let done = usize::try_from(compressor.total_in()).unwrap_or(usize::MAX);
            match compressor.compress_vec(body.get(done..).unwrap_or_default(), &mut out, FlushCompress::Finish) {
                Ok(Progress::StreamEnd) => break,
                // It is an error only if the compressor is used after its end.
                Ok(_) | Err(_) => out.reserve(body.len() / 2 + 64),
            }
        }
        compressor.reset();
        let mut kept = self.kept();
        if kept.len() < MAX_KEPT {
            kept.push((coding, compressor));
        }
        out
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(coding: Coding, data: &[u8]) -> Vec<u8> {
        Compressors::default().compress(coding, data)
    }

    fn of(coding: Coding, data: &[u8]) -> Compressed {
        Compressed { coding, data: Bytes::copy_from_slice(data), start: 0, limit: 64 << 20 }
    }

    fn inflated(coding: Coding, data: &[u8]) -> Result<Vec<u8>, Fault> {
        of(coding, data).inflate(usize::MAX - 1, |_| true)
    }

    fn numbers(count: u32) -> Vec<u8> {
        (0..count).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
    }

    fn text(fault: Fault) -> String {
        let Fault::Invalid(text) = fault else { panic!("{fault:?}") };
        text
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(parts in prop::collection::vec((any::<u8>(), 1..3000_usize), 0..20)) {
            let data: Vec<u8> = parts.into_iter().flat_map(|(byte, count)| vec![byte; count]).collect();
            for coding in [Coding::Gzip, Coding::Deflate] {
                let (first, second) = data.split_at(data.len() / 3);
                let members = [packed(coding, first), packed(coding, second)].concat();
                for sent in [packed(coding, &data), members] {
                    prop_assert_eq!(inflated(coding, &sent), Ok(data.clone()));
                    prop_assert!(inflated(coding, &sent[..sent.len() - 1]).is_err());
                }
            }
        }

        #[test]
        fn no_bytes_inflate_without_end(data in prop::collection::vec(any::<u8>(), 0..2000)) {
            for coding in [Coding::Gzip, Coding::Deflate] {
                let _ = inflated(coding, &data);
                let _ = inflated(coding, &[&packed(coding, &data)[..], &data].concat());
            }
        }
    }

    #[test]
    fn invalid_data_is_named_as_zlib_names_it() {
        let (gzip, zlib) = (packed(Coding::Gzip, b"a body"), packed(Coding::Deflate, b"a body"));
        let cases = [
            (Coding::Gzip, gzip[..gzip.len() - 2].to_vec(), "it ends early"),
            (Coding::Gzip, Vec::new(), "it ends early"),
            (Coding::Gzip, [&gzip[..], &[0]].concat(), "it ends early"),
            (Coding::Gzip, [&gzip[..], b"junk"].concat(), "Error -3 while decompressing data: incorrect header check"),
            (Coding::Gzip, zlib.clone(), "Error -3 while decompressing data: incorrect header check"),
            (Coding::Deflate, gzip.clone(), "Error -3 while decompressing data: incorrect header check"),
            (
                Coding::Deflate,
                [&zlib[..zlib.len() - 1], &[0]].concat(),
                "Error -3 while decompressing data: incorrect data check",
            ),
        ];
        for (coding, data, expected) in cases {
            let text = text(inflated(coding, &data).expect_err(expected));
            assert_eq!(text, format!("is not valid {} data: {expected}", coding.name()));
        }
        let members = packed(Coding::Gzip, b"").repeat(MAX_MEMBERS);
        assert_eq!(inflated(Coding::Gzip, &members), Ok(Vec::new()));
        let more = text(inflated(Coding::Gzip, &[&members[..], &gzip].concat()).expect_err("too many"));
        assert_eq!(more, "consists of more than 1000 gzip members.");
    }

    #[test]
    fn bytes_are_counted_before_their_memory_is_taken_and_never_pass_a_limit() {
        let data = numbers(100_000);
        let mut body = of(Coding::Gzip, &packed(Coding::Gzip, &data));
        for limit in [400_000, 399_999] {
            body.limit = limit;
            let mut held = 0;
            let inflated = body.inflate(usize::MAX - 1, |size| {
                held = size;
                true
            });
            assert_eq!(inflated.is_ok(), limit == 400_000);
            assert!(held <= limit + 1, "{held}");
        }
        assert_eq!(body.inflate(usize::MAX - 1, |_| true), Err(Fault::Bytes(399_999)));
        assert_eq!(body.inflate(usize::MAX - 1, |_| false), Err(Fault::InFlight));
        let mut held = 0;
        let bomb = of(Coding::Gzip, &packed(Coding::Gzip, &vec![0; 60 << 20]));
        let inflated = bomb.inflate(usize::MAX - 1, |size| {
            held = size;
            true
        });
        assert_eq!(inflated, Err(Fault::Ratio));
        assert!(held <= (100 * bomb.data.len()).max(4 << 20) + 1, "{held}");
        assert_eq!(
            super::tests::inflated(Coding::Gzip, &packed(Coding::Gzip, &vec![0; 4 << 20])),
            Ok(vec![0; 4 << 20])
        );
    }

    #[test]
    fn threads_of_connections_inflate_only_small_bodies() {
        let small = numbers(1000);
        for coding in [Coding::Gzip, Coding::Deflate] {
            assert_eq!(of(coding, &packed(coding, &small)).small(), Some(small.clone()));
            let many = packed(coding, b"").repeat(900);
            assert_eq!((of(coding, &many).small(), inflated(coding, &many)), (None, Ok(Vec::new())));
            assert_eq!(of(coding, &packed(coding, &vec![7; INLINE_BYTES + 1])).small(), None);
        }
        // The told size is false.
        let mut liar = packed(Coding::Gzip, &vec![0; 10 << 20]);
        let end = liar.len() - 4;
        liar[end..].copy_from_slice(&[1, 0, 0, 0]);
        assert_eq!(of(Coding::Gzip, &liar).small(), None);
    }

    fn headers(lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn clients_accept_what_their_weights_say() {
        use Coding::{Deflate, Gzip};
        for (lines, coding, is_required, is_alone) in [
            (&[][..], None, false, false),
            (&[""], None, false, false),
            (&["gzip"], Some(Gzip), false, true),
            (&[" GZIP "], Some(Gzip), false, true),
            (&["x-gzip;q=0.1"], Some(Gzip), false, true),
            (&["deflate"], Some(Deflate), false, true),
            (&["gzip, deflate, br, zstd"], Some(Gzip), false, false),
            (&["br", "gzip;q=0.5"], Some(Gzip), false, false),
            (&["gzip;q=0.5, deflate"], Some(Deflate), false, false),
            (&["gzip;q=0"], None, false, true),
            (&["gzip;q=0.000, deflate"], Some(Deflate), false, false),
            (&["*"], Some(Gzip), false, false),
            (&["*;q=0, gzip"], Some(Gzip), true, false),
            (&["gzip;q=0, *"], Some(Deflate), false, false),
            (&["identity"], None, false, true),
            (&["identity, gzip;q=0.5"], None, false, false),
            (&["gzip;q=1.0, identity; q=0.5"], Some(Gzip), false, false),
            (&["gzip, identity;q=0"], Some(Gzip), true, false),
            (&["identity;Q=0.0,deflate"], Some(Deflate), true, false),
            (&["br, identity;q=0"], None, true, false),
            (&["gzip;q=2"], None, false, false),
            (&["gzip;q=0.1234, deflate"], Some(Deflate), false, true),
            (&["gzip;q=, identity;q=x"], None, false, false),
        ] {
            let accepted = Accepted::of(&headers(lines));
            let found = (accepted.coding, accepted.is_required, accepted.is_alone && accepted.coding.is_some());
            assert_eq!(found, (coding, is_required, is_alone && coding.is_some()), "{lines:?}");
        }
    }

    #[test]
    fn answers_are_compressed_where_it_saves_or_the_client_takes_nothing_else() {
        let limits = Limits { gzip_min_bytes: 1000, ..Limits::default() };
        let (zeros, json) = (vec![0; 5000], b"[1.5,2.25]".repeat(500));
        // Floats as trained weights are: near 0, with mantissas like noise.
        let random: Vec<u8> = numbers(20_000)
            .chunks_exact(4)
            .flat_map(|four| (f32::from(i16::from_le_bytes([four[2], four[3]])) * 1.3e-6).sin().to_le_bytes())
            .collect();
        let choose = |line, body: &[u8], is_json| Accepted::of(&headers(&[line])).choose(body, is_json, &limits);
        for (line, body, is_json, expected) in [
            ("gzip", &json, true, Some(Coding::Gzip)),
            ("gzip, deflate", &json, true, Some(Coding::Gzip)),
            ("deflate", &json, true, Some(Coding::Deflate)),
            ("gzip", &zeros, false, Some(Coding::Gzip)),
            ("deflate", &zeros, false, Some(Coding::Deflate)),
            ("gzip", &random, false, None),
            ("gzip, deflate", &zeros, false, None),
            ("gzip, identity;q=0", &random, false, Some(Coding::Gzip)),
        ] {
            assert_eq!(choose(line, body, is_json), expected, "{line} {}", body.len());
        }
        assert_eq!(choose("gzip", &json[..999], true), None);
        assert_eq!(choose("gzip, identity;q=0", b"", true), Some(Coding::Gzip));
        let never = Limits { gzip_min_bytes: 0, ..Limits::default() };
        assert_eq!(Accepted::of(&headers(&["gzip"])).choose(&json, true, &never), None);
        assert_eq!(Accepted::only(Coding::Gzip).choose(&random, false, &never), Some(Coding::Gzip));
    }

    #[test]
    fn an_answer_is_compressed_once() {
        let compressors = Compressors::default();
        let plain = Bytes::from(numbers(10_000));
        let due = Encoded { due: Some(Coding::Gzip), ..Encoded::plain(plain.clone()) };
        let once = compressors.finish(due);
        let bytes = once.body.clone();
        let again = compressors.finish(once);
        assert_eq!((again.coding(), &again.body), (Some(Coding::Gzip), &bytes));
        assert_eq!(inflated(Coding::Gzip, &again.into_grpc().0), Ok(plain.to_vec()));
    }

    #[test]
    fn unknown_encodings_are_quoted_as_python_does() {
        for (name, expected) in
            [(&b"br"[..], "'br'"), (b"it's", "\"it's\""), (b"it's \\ \"x\"\t\xe9", "'it\\'s \\\\ \"x\"\\t\\xe9'")]
        {
            assert_eq!(quoted(name), expected);
        }
    }
}
