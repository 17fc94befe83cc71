//! Byte-pair merging of one piece: the adjacent pair of lowest rank becomes one symbol, until no pair has a rank.
//!
//! Texts of tokens and of both halves of each merge are numbered once at load (a token's symbol is its id), so merging
//! compares numbers only. Short pieces are searched in a row, long ones with a heap and a linked list, O(n log n).
//! Not here: how a text is cut into pieces ([`super::pre`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::spm::stated_char_len;
use super::vocab::{Spelling, Vocab, VocabData};
use super::{FastMap, TokenId, alphabet};

/// The number of a text: token ids first, then texts that are only parts of merges.
type Symbol = u32;

/// What two symbols become.
#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    merged: Symbol,
}

/// The tables of a BPE vocabulary.
#[derive(Debug)]
pub struct Bpe {
    pairs: FastMap<(Symbol, Symbol), Merge>,
    start: Start,
    vocab_tokens: u32,
    /// Tokens for those symbols that are none themselves, by `symbol - vocab_tokens`.
    spelled: Vec<Vec<TokenId>>,
}

/// The symbols with which a piece begins.
#[derive(Debug)]
enum Start {
    /// One for each byte value.
    Bytes(Vec<Symbol>),
    /// One for each character, where any token or merge has it; bytes otherwise.
    Chars { chars: FastMap<Box<[u8]>, Symbol>, bytes: Vec<Option<TokenId>> },
}

/// Buffers that one text's pieces share.
#[derive(Default)]
pub struct Scratch {
    symbols: Vec<Symbol>,
    merges: Vec<Option<Merge>>,
}

/// Pieces up to this many symbols are searched without a heap.
const ROW_SYMBOLS_MAX: usize = 32;

impl Bpe {
    pub fn new(data: &VocabData, vocab: &Vocab, spelling: Spelling) -> Bpe {
        let mut numbers = Numbers { vocab, extra: FastMap::default(), texts: Vec::new() };
        let mut pairs = FastMap::with_capacity_and_hasher(data.merges.len(), Default::default());
        for (rank, merge) in (0u32..).zip(&data.merges) {
            // The space is looked for from the second byte on, since the first may be a space itself.
            let Some(at) = merge.iter().skip(1).position(|&byte| byte == b' ') else { continue };
            let (left, right) = (&merge[..at + 1], &merge[at + 2..]);
            let pair = (numbers.of(left), numbers.of(right));
            let merged = numbers.of(&[left, right].concat());
            pairs.entry(pair).or_insert(Merge { rank, merged });
        }
        let start = match spelling {
            Spelling::ByteLevel => Start::Bytes(
                (0..=255u8).map(|byte| numbers.of(alphabet::char_of(byte).to_string().as_bytes())).collect(),
            ),
            Spelling::Escaped => Start::Chars {
                chars: numbers.single_chars(),
                bytes: (0..=255u8).map(|byte| vocab.byte_token(byte)).collect(),
            },
        };
        let spelled = numbers.texts.iter().map(|text| spell(vocab, text, spelling)).collect();
        Bpe { pairs, start, vocab_tokens: vocab.len() as u32, spelled }
    }

    /// Appends the tokens of one piece. What has no token at all is left out, as in the reference; this happens only
    /// where the vocabulary lacks one of the 256 bytes.
    pub fn encode(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        match &self.start {
            Start::Bytes(symbols) => {
                scratch.symbols.clear();
                scratch.symbols.extend(piece.iter().map(|&byte| symbols[byte as usize]));
                self.merge_into(scratch, out);
            }
            Start::Chars { chars, bytes } => self.encode_chars(piece, chars, bytes, scratch, out),
        }
    }

    /// Characters that no token or merge has can never merge: they cut the piece.
    fn encode_chars(
        &self,
        piece: &[u8],
        chars: &FastMap<Box<[u8]>, Symbol>,
        bytes: &[Option<TokenId>],
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        scratch.symbols.clear();
        let mut rest = piece;
        while let Some(&lead) = rest.first() {
            let (symbol, tail) = rest.split_at(stated_char_len(lead).min(rest.len()));
            rest = tail;
            match chars.get(symbol) {
                Some(&symbol) => scratch.symbols.push(symbol),
                None => {
                    self.merge_into(scratch, out);
                    scratch.symbols.clear();
                    out.extend(symbol.iter().filter_map(|&byte| bytes[byte as usize]));
                }
            }
        }
        self.merge_into(scratch, out);
    }

    fn merge_into(&self, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        if scratch.symbols.len() <= ROW_SYMBOLS_MAX {
            self.merge_in_row(scratch);
        } else {
            self.merge_with_heap(&mut scratch.symbols);
        }
        for &symbol in &scratch.symbols {
            match symbol.checked_sub(self.vocab_tokens) {
                None => out.push(TokenId(symbol)),
                Some(extra) => out.extend_from_slice(&self.spelled[extra as usize]),
            }
        }
    }

    fn pair(&self, left: Symbol, right: Symbol) -> Option<Merge> {
        self.pairs.get(&(left, right)).copied()
    }

    /// `merges[i]` is what symbols i and i+1 would become.
    fn merge_in_row(&self, scratch: &mut Scratch) {
        let Scratch { symbols, merges } = scratch;
        merges.clear();
        merges.extend(symbols.windows(2).map(|pair| self.pair(pair[0], pair[1])));
        loop {
            let ranked = merges.iter().enumerate().filter_map(|(at, merge)| Some((merge.as_ref()?.rank, at)));
            let Some((_, at)) = ranked.min() else { return };
            let Some(Merge { merged, .. }) = merges[at] else { return };
            symbols[at] = merged;
            symbols.remove(at + 1);
            merges.remove(at);
            if at > 0 {
                merges[at - 1] = self.pair(symbols[at - 1], merged);
            }
            if at + 1 < symbols.len() {
                merges[at] = self.pair(merged, symbols[at + 1]);
            }
        }
    }

    /// An entry of the heap is a rank and a place: the pair is looked up again when its turn comes, and it is the one
    /// that was meant if the rank is the same. Small entries make long pieces twice as fast.
    fn merge_with_heap(&self, symbols: &mut Vec<Symbol>) {
        let mut list = List::new(symbols);
        let merge_at = |list: &List, left: usize| {
            let right = list.next(left)?;
            Some((self.pair(list.symbols[left], list.symbols[right])?, right))
        };
        let entry = |list: &List, left: usize| {
            let (merge, _) = merge_at(list, left)?;
            Some(Reverse(u64::from(merge.rank) << 32 | left as u64))
        };
        let mut heap: BinaryHeap<_> = (0..symbols.len()).filter_map(|left| entry(&list, left)).collect();
        while let Some(Reverse(next)) = heap.pop() {
            let (rank, left) = ((next >> 32) as u32, (next & u64::from(u32::MAX)) as usize);
            let Some((merge, right)) = merge_at(&list, left).filter(|(merge, _)| merge.rank == rank) else { continue };
            list.join(left, right, merge.merged);
            let neighbours = [list.previous(left), Some(left)].into_iter().flatten();
            heap.extend(neighbours.filter_map(|left| entry(&list, left)));
        }
        *symbols = list.into_symbols();
    }
}

/// The tokens of a text that is none itself, character by character as the reference looks them up: byte by byte.
fn spell(vocab: &Vocab, text: &[u8], spelling: Spelling) -> Vec<TokenId> {
    let token = |&byte: &u8| match spelling {
        Spelling::ByteLevel => vocab.find(&[byte]),
        Spelling::Escaped => vocab.byte_token(byte),
    };
    text.iter().filter_map(token).collect()
}

/// Numbers texts; unknown ones get numbers past the vocabulary.
struct Numbers<'a> {
    vocab: &'a Vocab,
    extra: FastMap<Vec<u8>, Symbol>,
    texts: Vec<Vec<u8>>,
}

impl Numbers<'_> {
    fn of(&mut self, text: &[u8]) -> Symbol {
        if let Some(id) = self.vocab.find(text) {
            return id.0;
        }
        if let Some(&symbol) = self.extra.get(text) {
            return symbol;
        }
        let symbol = (self.vocab.len() + self.texts.len()) as Symbol;
        self.extra.insert(text.to_vec(), symbol);
        self.texts.push(text.to_vec());
        symbol
    }

    /// All numbered texts that are one character.
    fn single_chars(&self) -> FastMap<Box<[u8]>, Symbol> {
        let is_char = |text: &[u8]| text.first().is_some_and(|&lead| stated_char_len(lead) == text.len());
        let tokens = self.vocab.iter().map(|(id, text, _)| (text, id.0));
        let extra = self.extra.iter().map(|(text, &symbol)| (text.as_slice(), symbol));
        tokens.chain(extra).filter(|(text, _)| is_char(text)).map(|(text, symbol)| (text.into(), symbol)).collect()
    }
}

/// Symbols in a doubly linked list over their first indices.
struct List {
    symbols: Vec<Symbol>,
    /// Index of the next live symbol; the length at the end. Dead ones point at themselves.
    next: Vec<u32>,
    /// Index of the live symbol before; `u32::MAX` at the start.
    previous: Vec<u32>,
}

impl List {
    fn new(symbols: &[Symbol]) -> List {
        List {
            symbols: symbols.to_vec(),
            next: (1..=symbols.len() as u32).collect(),
            previous: (0..symbols.len() as u32).map(|at| at.wrapping_sub(1)).collect(),
        }
    }

    fn next(&self, at: usize) -> Option<usize> {
        let next = self.next[at] as usize;
        (next != at && next < self.symbols.len()).then_some(next)
    }

    fn previous(&self, at: usize) -> Option<usize> {
        let previous = self.previous[at];
        (previous != u32::MAX).then_some(previous as usize)
    }

    fn join(&mut self, left: usize, right: usize, merged: Symbol) {
        self.symbols[left] = merged;
        let after = self.next[right];
        self.next[left] = after;
        self.next[right] = right as u32;
        if let Some(previous) = self.previous.get_mut(after as usize) {
            *previous = left as u32;
        }
    }

    fn into_symbols(self) -> Vec<Symbol> {
        let mut live = Vec::with_capacity(self.symbols.len());
        let mut at = 0;
        while at < self.symbols.len() {
            live.push(self.symbols[at]);
            at = self.next[at] as usize;
        }
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heap_and_row_merge_alike(
            text in "[ab]{0,80}",
            merges in proptest::sample::subsequence(
                vec!["a a", "b b", "a b", "b a", "aa a", "a aa", "ab a", "aa bb", "ab ab", "ba b", "aaa b"], 0..=11),
        ) {
            let mut data = VocabData { model: "gpt2".into(), ..VocabData::default() };
            data.tokens = ["a", "b", "aa", "ab", "aab"].map(|token| token.as_bytes().to_vec()).into();
            data.merges = merges.iter().map(|merge| merge.as_bytes().to_vec()).collect();
            let vocab = Vocab::new(&data, Spelling::ByteLevel).expect("a good vocabulary");
            let bpe = Bpe::new(&data, &vocab, Spelling::ByteLevel);
            let symbols: Vec<Symbol> = text.bytes().map(|byte| Symbol::from(byte == b'b')).collect();
            let mut row = Scratch { symbols: symbols.clone(), merges: Vec::new() };
            bpe.merge_in_row(&mut row);
            let mut heap = symbols;
            bpe.merge_with_heap(&mut heap);
            prop_assert_eq!(row.symbols, heap);
        }
    }

    #[test]
    fn merges_that_are_no_tokens_are_spelled_by_their_letters() {
        let mut data = VocabData { model: "gpt2".into(), ..VocabData::default() };
        data.tokens = ["a", "b"].map(|token| token.as_bytes().to_vec()).into();
        data.merges = vec![b"a b".to_vec(), b"no-space".to_vec()];
        let vocab = Vocab::new(&data, Spelling::ByteLevel).expect("a good vocabulary");
        let mut found = Vec::new();
        Bpe::new(&data, &vocab, Spelling::ByteLevel).encode(b"abcb", &mut Scratch::default(), &mut found);
        assert_eq!(found, [0, 1, 1].map(TokenId)); // `c` has no token at all
    }
}
