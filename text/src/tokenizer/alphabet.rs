//! The byte-level alphabet: 256 printable characters that stand for the 256 bytes in BPE vocabularies.
//!
//! Bytes that are printable in Latin-1 stand for themselves, the other 68 are numbered from U+0100 on in order of value
//! (published with GPT-2). Not here: how texts are cut or merged ([`super::pre`], [`super::bpe`]).

/// The character that stands for `byte`.
pub fn char_of(byte: u8) -> char {
    match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => byte as char,
        0x00..=0x20 => shifted(byte),
        0x7F..=0xA0 => shifted(byte - 0x7F + 0x21),
        0xAD => shifted(0x21 + 0x22),
    }
}

/// Character number `index` of those that begin at U+0100.
fn shifted(index: u8) -> char {
    char::from_u32(0x100 + u32::from(index)).unwrap_or('\u{FFFD}')
}

/// The byte for which `symbol` stands; `None` if it is no member of the alphabet.
pub fn byte_of(symbol: char) -> Option<u8> {
    let code = symbol as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121) as u8 + 0x7F),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// `bytes` written in the alphabet.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char_of(byte)).collect()
}

/// The bytes that `text` stands for. Characters outside the alphabet are kept as their own UTF-8 bytes.
pub fn decode(text: &str, out: &mut Vec<u8>) {
    let mut buffer = [0; 4];
    for symbol in text.chars() {
        match byte_of(symbol) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(symbol.encode_utf8(&mut buffer).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let text = encode(&all);
        assert_eq!(text.chars().collect::<std::collections::HashSet<_>>().len(), 256);
        let mut back = Vec::new();
        decode(&text, &mut back);
        assert_eq!(back, all);
    }

    #[test]
    fn known_characters_of_the_published_alphabet() {
        for (byte, symbol) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (0, 'Ā'), (0x7F, 'ġ'), (0xAD, 'Ń')] {
            assert_eq!(char_of(byte), symbol);
        }
    }
}
