//! Writes float32 as JSON text: the shortest digits that read back as the same number, in orjson's layout.
//!
//! A float is c 2^q, with an integer c. Let 10^-k be the power of ten for which 2^q 10^-k lies between 1 and 10, and
//! let x be c 2^q 10^-k, which has seven to nine digits before the point. Each decimal within half of 2^q 10^-k of x
//! reads back as the same float. This distance is below 5, so at most one multiple of ten lies within it. If there is
//! one, its digits are the shortest; else the digits of the integer nearest to x are. A product of 64-bit words gives x
//! with an error below 2^-36. The crate zmij writes the rare floats: those for which this error leaves a comparison
//! open, those with a single digit, those that need an exponent, and powers of two, whose two neighbours have different
//! distances.
//!
//! Source: R. Giulietti, "The Schubfach way to render doubles" (2021), for the interval.

/// How NaN and infinity, for which JSON has no numbers, are written in JSON answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// NaN and infinity are written as the words `NaN`, `Infinity` and `-Infinity`, as TensorFlow Serving writes them.
    Tokens,
    /// The word `null`.
    Null,
}

impl NonFinite {
    /// Chooses the JSON text for NaN and infinity by the server's setting `strict_json`: `null` if it is on, else the
    /// words of `Tokens`.
    #[must_use]
    pub fn of(strict_json: bool) -> Self {
        if strict_json { NonFinite::Null } else { NonFinite::Tokens }
    }

    /// Returns the JSON text for `number`, which is NaN or an infinity.
    pub(super) fn text(self, number: f64) -> &'static [u8] {
        match self {
            NonFinite::Null => b"null",
            NonFinite::Tokens if number.is_nan() => b"NaN",
            NonFinite::Tokens if number > 0.0 => b"Infinity",
            NonFinite::Tokens => b"-Infinity",
        }
    }
}

/// Maximal number of bytes that this file's code writes for a float32, with the comma behind the number. The longest
/// text, such as `-0.000012345679,`, has one byte fewer; `-12345679.0` writes all, because the code stores eight bytes
/// behind the point.
pub const MAX_BYTES: usize = 18;

/// Number of floats that are converted to digits before the first of them is written as text. One loop for both steps
/// took 13 ns a number; two loops take 10.4 ns, because the processor can overlap more of the shorter iterations, and
/// 8.5 ns where AVX2 has vectors for the first one.
const BLOCK: usize = 16;

/// Number of bits behind the binary point of the fixed-point number [`Scale::step`].
const POINT: u32 = 60;
/// If the scaled float x differs from a limit by less than this many units of 2^-60, the comparison is unsure, because
/// the computed x has an error of up to 2^25 units. (The module's text defines x.)
const UNSURE: i64 = 1 << 26;

const MANTISSA: u32 = 0x7F_FFFF;
const IMPLICIT: u32 = 0x80_0000;
const LOW: u64 = u32::MAX as u64;
const ZEROS: u64 = u64::from_le_bytes(*b"00000000");
const ZERO_POINT: u64 = u64::from_le_bytes(*b"0.000000");

/// The constants that convert floats with one binary exponent to decimal digits; the module's text defines q, k and x.
#[derive(Clone, Copy)]
struct Scale {
    /// The factor 2^q 10^-k, which scales a float's mantissa, as a fixed-point number in units of 2^-60, rounded down.
    step: u64,
    /// Three constants in one word, so that a vector has those of several floats. The lowest 32 bits: a power of ten; of
    /// the scaled floats x of this binary exponent, those below this threshold have one digit fewer before the point than
    /// the others. The next 16 bits: the power of ten by which an x that is at least the threshold is multiplied, so that
    /// it has nine digits before the point. The highest 16 bits: the decimal exponent of the first digit of such a float.
    packed: u64,
}

/// The constants that convert a float32 to decimal digits; the index is the biased exponent of the float32.
static SCALES: [Scale; 256] = scales();

const fn scales() -> [Scale; 256] {
    // With 123 bits behind the point, the rounding errors of 150 doublings or halvings stay far below the last of the
    // 60 bits that are kept.
    const ONE: u128 = 1 << 123;
    let mut table = [Scale { step: 0, packed: 0 }; 256];
    let (mut step, mut exponent, mut biased) = (ONE, 0, 150);
    while biased < 256 {
        table[biased] = scale(step, exponent);
        step *= 2;
        if step >= 10 * ONE {
            step /= 10;
            exponent += 1;
        }
        biased += 1;
    }
    (step, exponent, biased) = (ONE, 0, 150);
    while biased > 0 {
        biased -= 1;
        if step < 2 * ONE {
            step *= 10;
            exponent -= 1;
        }
        step /= 2;
        table[biased] = scale(step, exponent);
    }
    table
}

/// Returns the [`Scale`] of floats whose factor 2^q 10^-k is `step`, in units of 2^-123.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A step is below 10; and the exponent's bits.
const fn scale(step: u128, k: i64) -> Scale {
    let step = (step >> (123 - POINT)) as u64;
    // The threshold is 10^7 if the scaled float of the smallest mantissa, 2^23, is below 10^7; else it is 10^8.
    let is_short = (step as u128) << 23 < 10_000_000 << POINT;
    let (threshold, factor, exponent) = if is_short { (10_000_000, 10, k + 7) } else { (100_000_000, 1, k + 8) };
    Scale { step, packed: threshold | factor << 32 | (exponent as u64) << 48 }
}

/// The shortest decimal digits that read back as the same float32s, with zeros appended up to nine digits.
#[derive(Default)]
struct Decimals {
    first_digits: [u32; BLOCK],
    /// The other eight digits of each float, each digit in a byte, the first of them in the lowest byte.
    eight_digits: [u64; BLOCK],
    /// Decimal exponent of each float's first digit; [`RARE`] if the crate zmij must write the float.
    exponents: [i32; BLOCK],
}

const RARE: i32 = i32::MAX;

/// Appends the texts of the numbers in `bytes`, with commas between them. `value` converts the `SIZE` little-endian
/// bytes of a number to a float.
pub fn write_row<const SIZE: usize>(
    bytes: &[u8],
    value: impl Fn([u8; SIZE]) -> f32,
    non_finite: NonFinite,
    out: &mut Vec<u8>,
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { write_by_avx2(bytes, value, non_finite, out) };
    }
    write_blocks(bytes, value, non_finite, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn write_by_avx2<const SIZE: usize>(
    bytes: &[u8],
    value: impl Fn([u8; SIZE]) -> f32,
    non_finite: NonFinite,
    out: &mut Vec<u8>,
) {
    write_blocks(bytes, value, non_finite, out);
}

#[inline(always)]
fn write_blocks<const SIZE: usize>(
    bytes: &[u8],
    value: impl Fn([u8; SIZE]) -> f32,
    non_finite: NonFinite,
    out: &mut Vec<u8>,
) {
    let (numbers, _) = bytes.as_chunks::<SIZE>();
    if numbers.is_empty() {
        return;
    }
    out.reserve(numbers.len() * MAX_BYTES);
    let mut length = out.len();
    let mut floats = [0.0; BLOCK];
    let mut decimals = Decimals::default();
    for block in numbers.chunks(BLOCK) {
        for (&number, float) in block.iter().zip(&mut floats) {
            *float = value(number);
        }
        decimals.set(&floats);
        for (at, &number) in floats[..block.len()].iter().enumerate() {
            debug_assert!(out.capacity() - length >= MAX_BYTES);
            // SAFETY: `out` has space for MAX_BYTES bytes for each number, and no earlier number wrote more, so this
            // number's text fits.
            length += unsafe { write(number, &decimals, at, non_finite, out.as_mut_ptr().add(length)) };
        }
    }
    // SAFETY: the texts of the numbers have initialised `length` bytes, within the capacity of `out`. The last byte, a
    // comma, is left out.
    unsafe { out.set_len(length - 1) };
}

impl Decimals {
    /// Sets the shortest decimal digits of floats. For zero, NaN, infinity and subnormals the digits are meaningless, and
    /// the exponent, or zeros as digits, make [`write`] leave the float to zmij.
    ///
    /// The compiler makes vector instructions of this loop, so its products are of numbers below 2^32, its comparisons are
    /// signed, and it divides by multiplications.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a digit, and the sign-extended exponent")]
    fn set(&mut self, floats: &[f32; BLOCK]) {
        let scales = floats.map(|float| SCALES[(float.to_bits() >> 23 & 0xFF) as usize]);
        let unsure = -UNSURE..UNSURE;
        for at in 0..BLOCK {
            let (bits, Scale { step, packed }) = (floats[at].to_bits(), scales[at]);
            // The scaled float x as a fixed-point number, with 64 bits behind the binary point.
            let mantissa = u64::from((bits & MANTISSA | IMPLICIT) << 4);
            let lower = mantissa * (step & LOW);
            let upper = mantissa * (step >> 32) + (lower >> 32);
            let (whole, rest) = (upper >> 32, upper << 32 | lower & LOW);

            let tens = tenth(whole + 5) * 10;
            let nearest = whole + (rest >> 63);
            // `distance` is the distance of the scaled float x from the nearest multiple of ten, at most 5; `half` is a
            // half of 2^q 10^-k. Both are in units of 2^-60.
            let beyond = (whole.wrapping_sub(tens) << POINT | rest >> 4).cast_signed();
            let distance = if beyond < 0 { -beyond } else { beyond };
            let half = (step >> 1).cast_signed();
            let digits = if distance < half { tens } else { nearest };

            let is_below = digits.cast_signed() < (packed & LOW).cast_signed();
            let factor = (packed >> 32 & 0xFFFF) * if is_below { 10 } else { 1 };
            let beyond_middle = (rest >> 4).cast_signed() - (1 << (POINT - 1));
            let is_unsure =
                unsure.contains(&(distance - half)) || unsure.contains(&beyond_middle) || bits & MANTISSA == 0;
            let exponent = (packed.cast_signed() >> 48) as i32 - i32::from(is_below);
            self.exponents[at] = if is_unsure { RARE } else { exponent };
            let digits = (digits & LOW) * factor;
            let upper = ten_thousandth(digits);
            let first = ten_thousandth(upper);
            self.first_digits[at] = first as u32;
            self.eight_digits[at] = one_digit_a_byte((digits - upper * 10_000) << 32 | (upper - first * 10_000));
        }
    }
}

/// Returns a tenth, rounded down, of a number below 2^32.
#[inline(always)]
fn tenth(number: u64) -> u64 {
    ((number & LOW) * 0xCCCC_CCCD) >> 35
}

/// Returns a ten-thousandth, rounded down, of a number below 2^32.
#[inline(always)]
fn ten_thousandth(number: u64) -> u64 {
    ((number & LOW) * 0xD1B7_1759) >> 45
}

/// Writes the float32 with this index in `decimals` as text and a comma at `to`; returns how many bytes these are, at most
/// [`MAX_BYTES`].
///
/// # Safety
/// [`MAX_BYTES`] bytes may be written at `to`.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The comments below give upper bounds.
unsafe fn write(number: f32, decimals: &Decimals, at: usize, non_finite: NonFinite, to: *mut u8) -> usize {
    let (first, ones, exponent) = (decimals.first_digits[at], decimals.eight_digits[at], decimals.exponents[at]);
    if !(-6..=7).contains(&exponent) || ones == 0 {
        // SAFETY: the caller promises that MAX_BYTES bytes at the address `to` may be written.
        return unsafe { write_rare(number, non_finite, to) };
    }
    // `count` is the number of decimal digits of the float, from 2 to 9.
    let count = 9 - ones.swap_bytes().trailing_zeros() as usize / 8;
    let eight = ones | ZEROS;

    // `before` is the number of digits before the point without the first digit, up to 7; `zeros` is the number of
    // zeros before the first digit, up to 6. At least one of the two is 0.
    let before = exponent.max(0) as usize;
    let zeros = (-exponent).max(0) as usize;
    let sign = usize::from(number.is_sign_negative());
    let start = if zeros > 0 { zeros + 1 } else { 0 };
    // SAFETY: the stores end at or before index sign + before + zeros + 2 + 8, which is at most MAX_BYTES. The comma's
    // index is at most sign + count + zeros + 1, which is below MAX_BYTES.
    unsafe {
        to.write(b'-');
        let to = to.add(sign);
        // Each store writes eight bytes, also if the text has fewer; the next store overwrites the bytes that are too
        // many.
        let store = |bytes: u64, at: usize| to.add(at).cast::<[u8; 8]>().write_unaligned(bytes.to_le_bytes());
        store(ZERO_POINT, 0);
        to.add(start).write(b'0' + first as u8);
        store(eight, start + 1);
        to.add(before + 1).write(b'.');
        store(eight >> (8 * before), before + zeros + 2);
        let end = count.max(before + 2) + zeros + 1;
        to.add(end).write(b',');
        sign + end + 1
    }
}

/// Returns the eight digits of two numbers below 10,000, of which the first lies in the low half of `fours`: each digit in
/// a byte, the first digit in the lowest byte.
#[inline(always)]
fn one_digit_a_byte(fours: u64) -> u64 {
    // Each number n becomes n / 100 in its low half and n % 100 in its high half; then each half is split by 10 in the
    // same way.
    let upper = ((fours * 10_486) >> 20) & 0x7F_0000_007F;
    let twos = (fours << 16) - upper * ((100 << 16) - 1);
    let upper = ((twos * 103) >> 10) & 0x000F_000F_000F_000F;
    (twos << 8) - upper * ((10 << 8) - 1)
}

/// Writes a float as [`write`] does, by the crate zmij.
///
/// # Safety
/// [`MAX_BYTES`] bytes may be written at `at`.
#[inline(never)]
unsafe fn write_rare(number: f32, non_finite: NonFinite, at: *mut u8) -> usize {
    let mut buffer = zmij::Buffer::new();
    let text =
        if number.is_finite() { buffer.format_finite(number).as_bytes() } else { non_finite.text(number.into()) };
    assert!(text.len() < MAX_BYTES, "a float32 takes at most 16 characters");
    // SAFETY: the copied text and the comma have at most MAX_BYTES bytes together, and the caller promises space for
    // them at `at`.
    unsafe {
        at.copy_from_nonoverlapping(text.as_ptr(), text.len());
        at.add(text.len()).write(b',');
    }
    text.len() + 1
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Appends the text that the crate zmij writes for a float, or the word for NaN or an infinity.
    fn plain(number: f32, out: &mut Vec<u8>) {
        if number.is_finite() {
            out.extend_from_slice(zmij::Buffer::new().format_finite(number).as_bytes());
        } else {
            out.extend_from_slice(NonFinite::Tokens.text(number.into()));
        }
    }

    fn assert_as_zmij(numbers: &[f32]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let (mut ours, mut zmijs) = (Vec::new(), Vec::new());
        write_row(&bytes, f32::from_le_bytes, NonFinite::Tokens, &mut ours);
        for &number in numbers {
            plain(number, &mut zmijs);
            zmijs.push(b',');
        }
        zmijs.pop();
        if ours != zmijs {
            assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(zmijs).unwrap());
        }
    }

    /// Returns test floats of every binary exponent and both signs.
    fn of_all_exponents() -> Vec<f32> {
        let mantissas = [0, 1, 2, 3, 0x12_3456, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFE, 0x7F_FFFF];
        (0..512).flat_map(|upper: u32| mantissas.map(|mantissa| f32::from_bits(upper << 23 | mantissa))).collect()
    }

    #[test]
    fn floats_of_all_exponents_are_as_zmij_writes_them() {
        assert_as_zmij(&of_all_exponents());
        assert_as_zmij(&[]);
    }

    #[test]
    fn decimals_are_as_zmij_writes_them() {
        let mut numbers = Vec::new();
        for exponent in -46..39 {
            for digits in (1..=1200).chain([99_999, 123_456, 999_999, 1_234_567, 16_777_217, 99_999_999]) {
                numbers.push(format!("{digits}e{exponent}").parse().unwrap());
            }
        }
        assert_as_zmij(&numbers);
    }

    #[test]
    fn no_number_writes_more_than_max_bytes() {
        const UNTOUCHED: u8 = 0xA5;
        let widest = [-1.234_567_9e-5, -9.876_543e-6, -12_345_679.0, -8.5e12, f32::NEG_INFINITY];
        let mut used = 0;
        for number in of_all_exponents().into_iter().chain(widest) {
            let mut buffer = [UNTOUCHED; 2 * MAX_BYTES];
            let mut decimals = Decimals::default();
            decimals.set(&[number; BLOCK]);
            // SAFETY: `buffer` has twice MAX_BYTES bytes, so the test can write a number of at most MAX_BYTES bytes
            // there.
            let length = unsafe { write(number, &decimals, 0, NonFinite::Tokens, buffer.as_mut_ptr()) };
            assert!(length <= MAX_BYTES, "{number:e}");
            assert_eq!(buffer[length - 1], b',', "{number:e}");
            used = used.max(2 * MAX_BYTES - buffer.iter().rev().take_while(|&&byte| byte == UNTOUCHED).count());
        }
        assert_eq!(used, MAX_BYTES);
    }

    proptest! {
        #[test]
        fn rows_are_as_zmij_writes_them(
            numbers in prop::collection::vec(prop_oneof![
                8 => -4.0f32..4.0,
                1 => -0.01f32..0.01,
                1 => -1e8f32..1e8,
                2 => any::<u32>().prop_map(f32::from_bits),
            ], 0..100),
        ) {
            assert_as_zmij(&numbers);
        }
    }

    #[test]
    #[ignore = "two and a half minutes in --release: after a change of this file or of zmij"]
    fn every_float_is_as_zmij_writes_it() {
        for upper in 0..1_u32 << 20 {
            let numbers: Vec<f32> = (0..1 << 12).map(|lower| f32::from_bits(upper << 12 | lower)).collect();
            assert_as_zmij(&numbers);
        }
    }
}
