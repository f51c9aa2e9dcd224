//! Text of a float32 in one pass: the shortest digits that read back as the same number, in the layout of zmij.
//!
//! A float is `c 2^q`. Scaled by a power of ten to `10^6 < x < 2 10^8`, half the distance to its neighbours is between 0.5
//! and 5; so at most one multiple of ten lies that close to `x`, and where there is one, its digits are the shortest, else
//! those of the integer next to `x`. In double precision both are known to 2^-24 or better. Where a comparison is closer
//! than that, and for all numbers with an exponent, [`write`] asks zmij, which takes twice as long.
//!
//! Source: R. Giulietti, "The Schubfach way to render doubles" (2021), for the interval.

use std::sync::LazyLock;

/// Bytes that [`write`] may touch; the longest text is `-0.0000012345678`.
pub const ROOM: usize = 32;

/// Where an exponent is written: from these on, and below the negative of these.
const LARGEST_PLAIN: i32 = 12;
const SMALLEST_PLAIN: i32 = -6;

/// A comparison closer than this may be wrong.
const UNSURE: f64 = 1.0 / 2_097_152.0;

/// What the exponent of a float says of all floats that have it.
#[derive(Clone, Copy)]
struct Scale {
    /// 10^-k
    power: f64,
    /// Half the distance to the next float, times 10^-k.
    half: f64,
    k: i32,
}

/// By biased exponent.
static SCALES: LazyLock<[Scale; 256]> = LazyLock::new(|| {
    std::array::from_fn(|biased| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let q = biased.max(1) as i32 - 150;
        // floor(log10(2^q))
        let k = (q * 1_262_611) >> 22;
        // The standard library reads decimals to the nearest double.
        let power: f64 = format!("1e{}", -k).parse().unwrap_or(f64::NAN);
        Scale {
            power,
            half: power * 2_f64.powi(q - 1),
            k,
        }
    })
});

const ZEROS: u64 = u64::from_le_bytes(*b"00000000");

/// Returns eight digits of a number below 10^8, each in a byte of its own, the first one lowest.
#[inline]
fn eight_digits(number: u32) -> u64 {
    let number = u64::from(number);
    let upper = number / 10_000;
    let fours = upper | ((number - upper * 10_000) << 32);
    let upper = ((fours * 10_486) >> 20) & 0x7F_0000_007F;
    let twos = upper | ((fours - 100 * upper) << 16);
    let upper = ((twos * 103) >> 10) & 0x000F_000F_000F_000F;
    upper | ((twos - 10 * upper) << 8)
}

#[inline]
fn store(room: &mut [u8; ROOM], at: usize, eight: u64) {
    room[at..at + 8].copy_from_slice(&eight.to_le_bytes());
}

/// Writes a finite number at the beginning of `room`; returns how long its text is.
#[inline]
#[must_use]
pub fn write(number: f32, scales: &Scales, room: &mut [u8; ROOM]) -> usize {
    let bits = number.to_bits();
    let scale = &scales.0[(bits >> 23 & 0xFF) as usize];
    let x = f64::from(number.abs()) * scale.power;
    // All of them are positive and below 2^31.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let (tens, whole) = ((x * 0.1 + 0.5) as u32, x as u32);
    let distance = (f64::from(tens) * 10.0 - x).abs();
    let rest = x - f64::from(whole);
    let is_short = distance < scale.half;
    let mut digits = if is_short { tens } else { whole + u32::from(rest > 0.5) };
    let is_unsure = (distance - scale.half).abs() < UNSURE || (rest - 0.5).abs() < UNSURE;
    // Below a power of two the neighbour is half as far.
    if is_unsure || bits & 0x7F_FFFF == 0 || digits < 1_000_000 {
        return write_rare(number, room);
    }
    // To nine digits.
    let missing = u32::from(digits < 100_000_000) + u32::from(digits < 10_000_000);
    digits *= [1, 10, 100][missing as usize];
    let exponent = scale.k + i32::from(is_short) + 8 - missing.cast_signed();
    if !(SMALLEST_PLAIN..=LARGEST_PLAIN).contains(&exponent) {
        return write_rare(number, room);
    }
    let first = digits / 100_000_000;
    let ones = eight_digits(digits - first * 100_000_000);
    let count = 9 - (ones.leading_zeros() / 8) as usize;
    let eight = ones | ZEROS;
    #[allow(clippy::cast_possible_truncation)]
    let letter = b'0' + first as u8;
    room[0] = b'-';
    let p = (bits >> 31) as usize;
    let point = exponent.unsigned_abs() as usize;
    if exponent < 0 {
        store(room, p, u64::from_le_bytes(*b"0.000000"));
        room[p + 1 + point] = letter;
        store(room, p + 2 + point, eight);
        return p + 1 + point + count;
    }
    room[p] = letter;
    store(room, p + 1, eight);
    store(room, p + 9, ZEROS);
    room[p + point + 1] = b'.';
    if count <= point + 1 {
        room[p + point + 2] = b'0';
        return p + point + 3;
    }
    store(room, p + point + 2, eight >> (8 * point));
    p + count + 1
}

#[cold]
fn write_rare(number: f32, room: &mut [u8; ROOM]) -> usize {
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(number).as_bytes();
    room[..text.len()].copy_from_slice(text);
    text.len()
}

/// The tables that [`write`] needs.
pub struct Scales(&'static [Scale; 256]);

impl Scales {
    /// Returns them; to be asked once for many numbers.
    #[must_use]
    #[inline]
    pub fn get() -> Self {
        Scales(&SCALES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(number: f32) {
        let mut room = [0; ROOM];
        let length = write(number, &Scales::get(), &mut room);
        let mut buffer = zmij::Buffer::new();
        assert_eq!(
            std::str::from_utf8(&room[..length]),
            Ok(buffer.format_finite(number)),
            "{:#x}",
            number.to_bits()
        );
    }

    #[test]
    fn texts_are_those_of_zmij() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1_000_000 {
            let number = f32::from_bits(random.u32(..));
            if number.is_finite() {
                check(number);
            }
            check((random.f32() - 0.5) * [1e-5, 1.0, 1e5, 1e14][random.usize(..4)]);
        }
        for exponent in 0..255_u32 {
            for mantissa in [0, 1, 2, 0x7F_FFFE, 0x7F_FFFF] {
                check(f32::from_bits(exponent << 23 | mantissa));
                check(-f32::from_bits(exponent << 23 | mantissa));
            }
        }
        (0..60_000_u16).for_each(|whole| check(f32::from(whole) / 100.0));
    }

    #[test]
    #[ignore = "all floats: a minute in release"]
    fn all_texts_are_those_of_zmij() {
        (0..0x7F80_0000).for_each(|bits| check(f32::from_bits(bits)));
    }
}
