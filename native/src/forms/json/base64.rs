//! Encodes and decodes base64, in which JSON bodies carry byte strings: `{"b64": "..."}`.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// White space in C and in Abseil; Rust's `is_ascii_whitespace` lacks it.
const VERTICAL_TAB: u8 = 0x0b;
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

/// Decodes base64; None if the text has a character or a length that base64 can not have. As in TensorFlow Serving, white
/// space is skipped, and the padding is whole or missing.
///
/// Source: `absl::Base64Unescape` in abseil-cpp's `absl/strings/escaping.cc`, without its dots as padding.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut letters, mut padding) = (0_usize, 0_usize);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let mut word = 0_u32;
    for &byte in text.as_bytes() {
        match VALUES[usize::from(byte)] {
            NONE if byte == b'=' => padding += 1,
            NONE if byte.is_ascii_whitespace() || byte == VERTICAL_TAB => {}
            value if value == NONE || padding > 0 => return None,
            value => {
                word = word << 6 | u32::from(value);
                letters += 1;
                if letters % 4 == 0 {
                    bytes.extend_from_slice(&word.to_be_bytes()[1..]);
                    word = 0;
                }
            }
        }
    }
    let whole_padding = match letters % 4 {
        0 => 0,
        1 => return None,
        left => {
            let last = word << (6 * (4 - left));
            bytes.extend_from_slice(&last.to_be_bytes()[1..left]);
            4 - left
        }
    };
    (padding == 0 || padding == whole_padding).then_some(bytes)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn padding_is_whole_or_missing() {
        for text in ["YWI=", "YWI", " YW\tI\u{b}=\n", "Y WI"] {
            assert_eq!(decode(text).unwrap(), b"ab", "{text:?}");
        }
        for text in ["YQ==", "YQ", "YQ= ="] {
            assert_eq!(decode(text).unwrap(), b"a", "{text:?}");
        }
        for text in ["", " "] {
            assert_eq!(decode(text).unwrap(), b"", "{text:?}");
        }
        for text in
            ["Y", "YWJjZ", "Y=WI", "YWI==", "YWI===", "YQ=", "YWJj=", "=", "==", "YQ==YQ==", "YW\u{e9}I", "YW-I"]
        {
            assert_eq!(decode(text), None, "{text:?}");
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
