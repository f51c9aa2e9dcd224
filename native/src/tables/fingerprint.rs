//! FarmHash's Fingerprint64, the hash by which TensorFlow chooses OOV buckets; it is the same on every machine.
//!
//! Source: google/farmhash 0d859a8, src/farmhash.cc, `farmhashna::Hash64`.
#![allow(clippy::many_single_char_names, reason = "the names are FarmHash's")]

const K0: u64 = 0xC3A5_C85C_97CB_3127;
const K1: u64 = 0xB492_B66F_BE98_F273;
const K2: u64 = 0x9AE1_6A3B_2F90_404F;
const SEED: u64 = 81;

#[inline(always)]
fn fetch32(text: &[u8], at: usize) -> u64 {
    let mut word = [0; 4];
    word.copy_from_slice(&text[at..at + 4]);
    u64::from(u32::from_le_bytes(word))
}

#[inline(always)]
fn fetch(text: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&text[at..at + 8]);
    u64::from_le_bytes(word)
}

#[inline(always)]
fn shift_mix(word: u64) -> u64 {
    word ^ (word >> 47)
}

#[inline(always)]
fn join(u: u64, v: u64, mul: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(mul));
    shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

#[inline(always)]
fn sum(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |sum, &number| sum.wrapping_add(number))
}

#[inline]
fn up_to_16(text: &[u8]) -> u64 {
    let length = text.len();
    let size = length as u64;
    let mul = K2.wrapping_add(size * 2);
    if length >= 8 {
        let a = fetch(text, 0).wrapping_add(K2);
        let b = fetch(text, length - 8);
        let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
        let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
        return join(c, d, mul);
    }
    if length >= 4 {
        return join(size + (fetch32(text, 0) << 3), fetch32(text, length - 4), mul);
    }
    if length > 0 {
        let y = u64::from(text[0]) + (u64::from(text[length >> 1]) << 8);
        let z = size + (u64::from(text[length - 1]) << 2);
        return shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2);
    }
    K2
}

#[inline]
fn up_to_32(text: &[u8]) -> u64 {
    let length = text.len();
    let mul = K2.wrapping_add(length as u64 * 2);
    let a = fetch(text, 0).wrapping_mul(K1);
    let b = fetch(text, 8);
    let c = fetch(text, length - 8).wrapping_mul(mul);
    let d = fetch(text, length - 16).wrapping_mul(K2);
    let u = sum(&[a.wrapping_add(b).rotate_right(43), c.rotate_right(30), d]);
    let v = sum(&[a, b.wrapping_add(K2).rotate_right(18), c]);
    join(u, v, mul)
}

fn up_to_64(text: &[u8]) -> u64 {
    let length = text.len();
    let mul = K2.wrapping_add(length as u64 * 2);
    let a = fetch(text, 0).wrapping_mul(K2);
    let b = fetch(text, 8);
    let c = fetch(text, length - 8).wrapping_mul(mul);
    let d = fetch(text, length - 16).wrapping_mul(K2);
    let y = sum(&[a.wrapping_add(b).rotate_right(43), c.rotate_right(30), d]);
    let z = join(y, sum(&[a, b.wrapping_add(K2).rotate_right(18), c]), mul);
    let e = fetch(text, 16).wrapping_mul(mul);
    let f = fetch(text, 24);
    let g = y.wrapping_add(fetch(text, length - 32)).wrapping_mul(mul);
    let h = z.wrapping_add(fetch(text, length - 24)).wrapping_mul(mul);
    let u = sum(&[e.wrapping_add(f).rotate_right(43), g.rotate_right(30), h]);
    join(u, sum(&[e, f.wrapping_add(a).rotate_right(18), g]), mul)
}

#[inline(always)]
fn weak_32(text: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let a = a.wrapping_add(fetch(text, at));
    let z = fetch(text, at + 24);
    let b = sum(&[b, a, z]).rotate_right(21);
    let c = a;
    let a = sum(&[a, fetch(text, at + 8), fetch(text, at + 16)]);
    let b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

/// Returns the Fingerprint64 of a string's bytes.
#[must_use]
pub fn fingerprint64(text: &[u8]) -> u64 {
    match text.len() {
        0..=16 => up_to_16(text),
        17..=32 => up_to_32(text),
        33..=64 => up_to_64(text),
        _ => longer(text),
    }
}

fn longer(text: &[u8]) -> u64 {
    // The loop reads blocks of 64 bytes. The last block, after the loop, ends with the string, so it may overlap the
    // block before it.
    let last = text.len() - 1;
    let mut x = SEED.wrapping_mul(K2).wrapping_add(fetch(text, 0));
    let mut y = SEED.wrapping_mul(K1).wrapping_add(113);
    let mut z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let (mut v, mut w) = ((0, 0), (0, 0));
    for at in (0..last / 64 * 64).step_by(64) {
        x = sum(&[x, y, v.0, fetch(text, at + 8)]).rotate_right(37).wrapping_mul(K1) ^ w.1;
        y = sum(&[y, v.1, fetch(text, at + 48)]).rotate_right(42).wrapping_mul(K1);
        y = sum(&[y, v.0, fetch(text, at + 40)]);
        z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(K1);
        v = weak_32(text, at, v.1.wrapping_mul(K1), x.wrapping_add(w.0));
        let second = y.wrapping_add(fetch(text, at + 16));
        w = weak_32(text, at + 32, z.wrapping_add(w.1), second);
        (z, x) = (x, z);
    }
    let mul = K1.wrapping_add((z & 255) << 1);
    let at = text.len() - 64;
    w.0 = w.0.wrapping_add(last as u64 & 63);
    v.0 = v.0.wrapping_add(w.0);
    w.0 = w.0.wrapping_add(v.0);
    x = sum(&[x, y, v.0, fetch(text, at + 8)]).rotate_right(37).wrapping_mul(mul) ^ w.1.wrapping_mul(9);
    y = sum(&[y, v.1, fetch(text, at + 48)]).rotate_right(42).wrapping_mul(mul);
    y = sum(&[y, v.0.wrapping_mul(9), fetch(text, at + 40)]);
    z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(mul);
    v = weak_32(text, at, v.1.wrapping_mul(mul), x.wrapping_add(w.0));
    let second = y.wrapping_add(fetch(text, at + 16));
    w = weak_32(text, at + 32, z.wrapping_add(w.1), second);
    let first = sum(&[join(v.0, w.0, mul), shift_mix(y).wrapping_mul(K0), x]);
    join(first, join(v.1, w.1, mul).wrapping_add(z), mul)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::fingerprint64;

    // The expected values are results of tf.fingerprint; the test has one text for each length that takes another
    // branch of the code.
    #[test]
    fn known_values() {
        let twenty = "0123456789".repeat(20);
        for (text, expected) in [
            ("", 0x9AE1_6A3B_2F90_404F),
            ("red", 0x0DC1_119C_86E5_61F6),
            ("abcd", 0x1A55_02DE_4A1F_8101),
            ("grüngrün", 0x2686_5549_676A_FCEA),
            ("-9223372036854775808", 0x14B9_BC6F_6D28_37E0),
            (&twenty[..50], 0xCD3C_9ED8_CE49_9908),
            (&twenty, 0x861A_2CA2_90DC_8395),
        ] {
            assert_eq!(fingerprint64(text.as_bytes()), expected, "{text}");
        }
    }
}
