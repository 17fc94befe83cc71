//! Unicode classes of characters as the hand-written scanners need them: letter, mark, number, white space.
//!
//! The table is made once from the tables of `regex-syntax`, so that scanners and expressions can never disagree.
//! Not here: the scanners ([`super::pre`]).

use std::sync::OnceLock;

/// A set of Unicode classes of one character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class(u8);

impl Class {
    /// `\p{L}`
    pub const LETTER: Class = Class(1);
    /// `\p{M}`
    pub const MARK: Class = Class(2);
    /// `\p{N}`
    pub const NUMBER: Class = Class(4);
    /// `\s`
    pub const SPACE: Class = Class(8);
    /// `\d`
    pub const DIGIT: Class = Class(16);
    /// `\w`
    pub const WORD: Class = Class(32);

    /// The union of two sets.
    pub const fn or(self, other: Class) -> Class {
        Class(self.0 | other.0)
    }

    /// Whether the two sets have a member in common.
    pub fn meets(self, other: Class) -> bool {
        self.0 & other.0 != 0
    }
}

const BLOCK_CHARS: usize = 256;
const BLOCKS: usize = 0x11_0000 / BLOCK_CHARS;

/// Two levels: the index holds for each block of 256 characters which of the distinct `blocks` describes it.
struct Table {
    index: Vec<u16>,
    blocks: Vec<[u8; BLOCK_CHARS]>,
}

/// The classes of `symbol`.
pub fn class_of(symbol: char) -> Class {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(build);
    let code = symbol as usize;
    let block = table.index[code / BLOCK_CHARS] as usize;
    Class(table.blocks[block][code % BLOCK_CHARS])
}

fn build() -> Table {
    let mut flat = vec![0u8; BLOCKS * BLOCK_CHARS];
    let classes = [
        (r"\p{L}", Class::LETTER),
        (r"\p{M}", Class::MARK),
        (r"\p{N}", Class::NUMBER),
        (r"\s", Class::SPACE),
        (r"\d", Class::DIGIT),
        (r"\w", Class::WORD),
    ];
    for (expression, class) in classes {
        for (first, last) in ranges(expression) {
            flat[first as usize..=last as usize].iter_mut().for_each(|entry| *entry |= class.0);
        }
    }
    let mut table = Table { index: Vec::with_capacity(BLOCKS), blocks: Vec::new() };
    for block in flat.chunks_exact(BLOCK_CHARS) {
        let found = table.blocks.iter().position(|known| known == block);
        let number = found.unwrap_or_else(|| {
            let mut copy = [0; BLOCK_CHARS];
            copy.copy_from_slice(block);
            table.blocks.push(copy);
            table.blocks.len() - 1
        });
        table.index.push(number as u16);
    }
    table
}

/// The code point ranges of a class expression; empty if `expression` is no class, which a test excludes.
fn ranges(expression: &str) -> Vec<(u32, u32)> {
    let Ok(parsed) = regex_syntax::parse(expression) else { return Vec::new() };
    match parsed.kind() {
        regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
            class.iter().map(|range| (range.start() as u32, range.end() as u32)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_known_characters() {
        let word = Class::WORD;
        let cases = [
            ('a', Class::LETTER.or(word)),
            ('é', Class::LETTER.or(word)),
            ('人', Class::LETTER.or(word)),
            ('\u{93E}', Class::MARK.or(word)),
            ('\u{301}', Class::MARK.or(word)),
            ('7', Class::NUMBER.or(Class::DIGIT).or(word)),
            ('½', Class::NUMBER),
            ('Ⅷ', Class::NUMBER.or(word)),
            ('٣', Class::NUMBER.or(Class::DIGIT).or(word)),
            ('_', word),
            (' ', Class::SPACE),
            ('\u{85}', Class::SPACE),
            ('\u{3000}', Class::SPACE),
            ('!', Class(0)),
            ('\u{200D}', word),
            ('\u{200B}', Class(0)),
            ('\u{1C}', Class(0)),
            ('😀', Class(0)),
        ];
        for (symbol, class) in cases {
            assert_eq!(class_of(symbol), class, "{symbol:?}");
        }
    }
}
