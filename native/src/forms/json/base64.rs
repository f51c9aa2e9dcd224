//! Encodes and decodes base64, in which JSON bodies carry byte strings: `{"b64": "..."}`.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The value in the table `VALUES` for a byte that is no base64 character.
const NONE: u8 = 255;

const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut i = 0;
    while i < 64 {
        #[allow(clippy::cast_possible_truncation)]
        {
            values[LETTERS[i] as usize] = i as u8;
        }
        i += 1;
    }
    values
};

/// Appends the base64 text of `bytes` to `out`, with padding.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let at = |i: usize| chunk.get(i).copied().map_or(0, u32::from);
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * i) & 63) as usize];
            out.push(if i > chunk.len() { b'=' } else { letter });
        }
    }
}

/// Decodes base64, with or without padding; None if the text has a character or a length that base64 can not have.
/// White space is refused, too.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let letters = text.trim_end_matches('=').as_bytes();
    if letters.len() % 4 == 1 || text.len() - letters.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 2);
    for chunk in letters.chunks(4) {
        let mut word = 0_u32;
        for (i, &letter) in chunk.iter().enumerate() {
            let value = VALUES[usize::from(letter)];
            if value == NONE {
                return None;
            }
            word |= u32::from(value) << (18 - 6 * i);
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn padding_may_be_left_out() {
        for text in ["YWI=", "YWI"] {
            assert_eq!(decode(text).unwrap(), b"ab");
        }
        assert_eq!(decode("").unwrap(), b"");
        for text in ["Y", "YWJjZ", "YW I", "Y=WI", "YWI===", "YW\u{e9}I", "YW-I"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn decode_reverts_encode(bytes: Vec<u8>) {
            let mut text = Vec::new();
            encode(&bytes, &mut text);
            prop_assert_eq!(decode(std::str::from_utf8(&text).unwrap()).unwrap(), bytes);
        }
    }
}
