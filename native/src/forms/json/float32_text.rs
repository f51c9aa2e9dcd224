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

use std::hint::select_unpredictable;

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
const MAX_BYTES: usize = 18;

/// Number of floats that are converted to digits before the first of them is written as text. One loop for both steps
/// took 13 ns a number; two loops take 10 ns, because the processor can overlap more of the shorter iterations.
const BLOCK: usize = 16;

/// Number of bits behind the binary point of the fixed-point number [`Scale::step`].
const POINT: u32 = 60;
/// If the scaled float x differs from a limit by less than this many units of 2^-60, the comparison is unsure, because
/// the computed x has an error of up to 2^25 units. (The module's text defines x.)
const UNSURE: u64 = 1 << 26;

const MANTISSA: u32 = 0x7F_FFFF;
const IMPLICIT: u32 = 0x80_0000;
const ZEROS: u64 = u64::from_le_bytes(*b"00000000");
const ZERO_POINT: u64 = u64::from_le_bytes(*b"0.000000");

/// The constants that convert floats with one binary exponent to decimal digits; the module's text defines q, k and x.
#[derive(Clone, Copy)]
struct Scale {
    /// The factor 2^q 10^-k, which scales a float's mantissa, as a fixed-point number in units of 2^-60, rounded down.
    step: u64,
    /// A power of ten. Of the scaled floats x of this binary exponent, those below the threshold have one digit fewer
    /// before the point than the others.
    threshold: u32,
    /// The power of ten by which a scaled float x below the threshold is multiplied, so that it has nine digits before
    /// the point.
    if_below: u8,
    /// The power of ten by which a scaled float x that is at least the threshold is multiplied, so that it has nine
    /// digits before the point.
    if_above: u8,
    /// The decimal exponent of the first digit of a float whose scaled value x is at least `threshold`.
    exponent: i8,
}

/// The constants that convert a float32 to decimal digits; the index is the biased exponent of the float32.
static SCALES: [Scale; 256] = scales();

const fn scales() -> [Scale; 256] {
    // With 123 bits behind the point, the rounding errors of 150 doublings or halvings stay far below the last of the
    // 60 bits that are kept.
    const ONE: u128 = 1 << 123;
    let mut table = [Scale { step: 0, threshold: 0, if_below: 0, if_above: 0, exponent: 0 }; 256];
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
#[allow(clippy::cast_possible_truncation)] // A step is below 10.
const fn scale(step: u128, k: i8) -> Scale {
    let step = (step >> (123 - POINT)) as u64;
    // `Scale::threshold` is 10^7 if the scaled float of the smallest mantissa, 2^23, is below 10^7; else it is 10^8.
    let is_short = (step as u128) << 23 < 10_000_000 << POINT;
    Scale {
        step,
        threshold: if is_short { 10_000_000 } else { 100_000_000 },
        if_below: if is_short { 100 } else { 10 },
        if_above: if is_short { 10 } else { 1 },
        exponent: if is_short { k + 7 } else { k + 8 },
    }
}

/// A float32 with the shortest decimal digits that read back as the same float32.
#[derive(Clone, Copy, Default)]
struct Decimal {
    number: f32,
    /// The shortest decimal digits of the float, with zeros appended up to nine digits, as an integer.
    digits: u32,
    /// Decimal exponent of the float's first digit; [`RARE`] if the crate zmij must write the float.
    exponent: i32,
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
    let (numbers, _) = bytes.as_chunks::<SIZE>();
    if numbers.is_empty() {
        return;
    }
    out.reserve(numbers.len() * MAX_BYTES);
    let mut length = out.len();
    let mut decimals = [Decimal::default(); BLOCK];
    for block in numbers.chunks(BLOCK) {
        for (&number, decimal) in block.iter().zip(&mut decimals) {
            *decimal = nine_digits(value(number));
        }
        for &decimal in &decimals[..block.len()] {
            debug_assert!(out.capacity() - length >= MAX_BYTES);
            // SAFETY: `out` has space for MAX_BYTES bytes for each number, and no earlier number wrote more, so this
            // number's text fits.
            length += unsafe { write(decimal, non_finite, out.as_mut_ptr().add(length)) };
        }
    }
    // SAFETY: the texts of the numbers have initialised `length` bytes, within the capacity of `out`. The last byte, a
    // comma, is left out.
    unsafe { out.set_len(length - 1) };
}

/// Returns the shortest decimal digits of a float, and their exponent. For zero, NaN, infinity and subnormals the
/// digits are meaningless, and the exponent makes [`write`] leave the float to zmij.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // Below 2^24 times 10; and the bits behind the point, on purpose.
fn nine_digits(number: f32) -> Decimal {
    let bits = number.to_bits();
    let scale = &SCALES[(bits >> 23 & 0xFF) as usize];
    // The scaled float x as a fixed-point number, with 64 bits behind the binary point.
    let x = u128::from((bits & MANTISSA | IMPLICIT) << 4) * u128::from(scale.step);
    let whole = (x >> 64) as u32;
    let rest = x as u64;

    let tens = (whole + 5) / 10 * 10;
    let nearest = whole + (rest >> 63) as u32;
    // `distance` is the distance of the scaled float x from the nearest multiple of ten, at most 5; `half` is a half of
    // 2^q 10^-k. Both are in units of 2^-60.
    let beyond = u64::from(whole).wrapping_sub(u64::from(tens)) << POINT | rest >> 4;
    let distance = beyond.cast_signed().unsigned_abs();
    let half = scale.step / 2;
    let digits = select_unpredictable(distance < half, tens, nearest);

    let is_below = digits < scale.threshold;
    let factor = select_unpredictable(is_below, scale.if_below, scale.if_above);
    let is_unsure = distance.wrapping_sub(half - UNSURE) < 2 * UNSURE
        || (rest >> 4).wrapping_sub((1 << (POINT - 1)) - UNSURE) < 2 * UNSURE
        || bits & MANTISSA == 0;
    Decimal {
        number,
        digits: digits * u32::from(factor),
        exponent: if is_unsure { RARE } else { i32::from(scale.exponent) - i32::from(is_below) },
    }
}

/// Writes a float32 as text and a comma at `at`; returns how many bytes these are, at most [`MAX_BYTES`].
///
/// # Safety
/// [`MAX_BYTES`] bytes may be written at `at`.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The comments below give upper bounds.
unsafe fn write(decimal: Decimal, non_finite: NonFinite, at: *mut u8) -> usize {
    let Decimal { number, digits, exponent } = decimal;
    let upper = digits / 10_000;
    let first = upper / 10_000;
    let ones = one_digit_a_byte(upper - first * 10_000, digits - upper * 10_000);
    if !(-6..=7).contains(&exponent) || ones == 0 {
        // SAFETY: the caller promises that MAX_BYTES bytes at the address `at` may be written.
        return unsafe { write_rare(number, non_finite, at) };
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
        at.write(b'-');
        let at = at.add(sign);
        // Each store writes eight bytes, also if the text has fewer; the next store overwrites the bytes that are too
        // many.
        store(ZERO_POINT, at);
        at.add(start).write(b'0' + first as u8);
        store(eight, at.add(start + 1));
        at.add(before + 1).write(b'.');
        store(eight >> (8 * before), at.add(before + zeros + 2));
        let end = count.max(before + 2) + zeros + 1;
        at.add(end).write(b',');
        sign + end + 1
    }
}

/// Writes the eight bytes of an integer to the address `at`, the lowest byte first.
///
/// # Safety
/// Eight bytes may be written at `at`.
#[inline(always)]
unsafe fn store(bytes: u64, at: *mut u8) {
    // SAFETY: the caller promises that eight bytes at the address `at` may be written; the write needs no alignment.
    unsafe { at.cast::<[u8; 8]>().write_unaligned(bytes.to_le_bytes()) };
}

/// Returns the eight digits of two numbers below 10,000, each digit in a byte, the first digit in the lowest byte.
#[inline(always)]
fn one_digit_a_byte(first_four: u32, last_four: u32) -> u64 {
    // Each number n becomes n / 100 in its low half and n % 100 in its high half; then each half is split by 10 in the
    // same way.
    let fours = u64::from(last_four) << 32 | u64::from(first_four);
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
            // SAFETY: `buffer` has twice MAX_BYTES bytes, so the test can write a number of at most MAX_BYTES bytes
            // there.
            let length = unsafe { write(nine_digits(number), NonFinite::Tokens, buffer.as_mut_ptr()) };
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

    #[test]
    #[ignore = "a measurement, in --release with --nocapture"]
    fn time_of_a_number() {
        // Each test number is a sum of twelve uniform random numbers, and so has nearly the standard normal
        // distribution.
        let mut random = fastrand::Rng::with_seed(1);
        let count = 128 * 160;
        let numbers: Vec<f32> = (0..count).map(|_| (0..12).map(|_| random.f32()).sum::<f32>() - 6.0).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut out = Vec::new();
        let mut best = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut best = Duration::MAX;
            for _ in 0..2000 {
                out.clear();
                let start = Instant::now();
                write(&mut out);
                best = best.min(start.elapsed());
            }
            best.as_secs_f64() * 1e9 / f64::from(count)
        };
        let ours = best(&|out| {
            for row in bytes.chunks(4 * 160) {
                out.push(b'[');
                write_row(row, f32::from_le_bytes, NonFinite::Tokens, out);
                out.extend_from_slice(b"],");
            }
        });
        let zmijs = best(&|out| {
            for &number in &numbers {
                plain(number, out);
                out.push(b',');
            }
        });
        println!("{ours:.1} ns a number; zmij {zmijs:.1} ns");
    }
}
