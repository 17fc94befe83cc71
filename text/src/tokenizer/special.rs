//! Cuts special tokens out of a text before anything else is done with it.
//!
//! User-defined tokens are always looked for, control and unknown ones only on request. Longer tokens (in bytes) go
//! first, over the whole text: this is not leftmost-longest. Among tokens of one length the leftmost goes first.
//!
//! For speed the tokens are in a byte tree: one walk over the text finds which lengths occur at all (mostly none), then
//! one walk for each of those lengths takes the tokens out of what is left. Next file: [`super::encode`].

use std::ops::Range;

use super::vocab::{TokenAttributes, Vocab};
use super::{ParseSpecial, TokenId};

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Bytes that are no special token.
    Text(Range<usize>),
    /// A special token.
    Token(TokenId),
}

/// The special tokens of a vocabulary, ready to be looked for.
#[derive(Debug)]
pub struct Specials {
    always: Tree,
    with_control: Tree,
}

impl Specials {
    pub fn new(vocab: &Vocab) -> Specials {
        let control = TokenAttributes::CONTROL.or(TokenAttributes::UNKNOWN);
        let mut specials = Specials { always: Tree::default(), with_control: Tree::default() };
        for (id, text, set) in vocab.iter() {
            let leaf = Leaf { id, strips_right: set.meets(TokenAttributes::STRIPS_RIGHT) };
            if set.meets(control.or(TokenAttributes::USER_DEFINED)) {
                specials.with_control.insert(text, leaf);
            }
            if set.meets(TokenAttributes::USER_DEFINED) && !set.meets(control) {
                specials.always.insert(text, leaf);
            }
        }
        specials.always.index_roots();
        specials.with_control.index_roots();
        specials
    }

    /// `text` in parts, in order; empty for an empty text.
    pub fn partition(&self, text: &[u8], parse: ParseSpecial) -> Vec<Fragment> {
        self.partition_where(text, parse, &|_, _| true)
    }

    /// As [`Self::partition`], with only those special tokens that `allowed` lets stand where they are.
    pub fn partition_where(
        &self,
        text: &[u8],
        parse: ParseSpecial,
        allowed: &dyn Fn(TokenId, Range<usize>) -> bool,
    ) -> Vec<Fragment> {
        let tree = match parse {
            ParseSpecial::Yes => &self.with_control,
            ParseSpecial::No => &self.always,
        };
        let mut plain = Vec::from_iter((!text.is_empty()).then_some(0..text.len()));
        let mut found = Vec::new();
        for len in tree.lengths_in(text).into_iter().rev() {
            let finder = Finder { tree, text, len, allowed };
            plain = finder.take_out(plain, &mut found);
        }
        merge_in_order(plain, found)
    }
}

/// Looks for the tokens of one length.
struct Finder<'a> {
    tree: &'a Tree,
    text: &'a [u8],
    len: usize,
    allowed: &'a dyn Fn(TokenId, Range<usize>) -> bool,
}

impl Finder<'_> {
    fn leaf_at(&self, at: usize) -> Option<Leaf> {
        let range = at..at + self.len;
        self.tree.exact(&self.text[range.clone()]).filter(|leaf| (self.allowed)(leaf.id, range))
    }

    /// Takes all tokens out of the ranges `plain`; what remains of these is returned.
    fn take_out(&self, plain: Vec<Range<usize>>, found: &mut Vec<(usize, TokenId)>) -> Vec<Range<usize>> {
        let mut remains = Vec::with_capacity(plain.len());
        for range in plain {
            let mut start = range.start;
            let mut at = range.start;
            while at + self.len <= range.end {
                let Some(leaf) = self.leaf_at(at) else {
                    at += 1;
                    continue;
                };
                if start < at {
                    remains.push(start..at);
                }
                found.push((at, leaf.id));
                at += self.len;
                while leaf.strips_right && at < range.end && is_c_space(self.text[at]) {
                    at += 1;
                }
                start = at;
            }
            if start < range.end {
                remains.push(start..range.end);
            }
        }
        remains
    }
}

fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0D)
}

fn merge_in_order(plain: Vec<Range<usize>>, mut found: Vec<(usize, TokenId)>) -> Vec<Fragment> {
    found.sort_unstable();
    let mut fragments = Vec::with_capacity(plain.len() + found.len());
    let mut found = found.into_iter().peekable();
    for range in plain {
        while let Some((_, id)) = found.next_if(|&(at, _)| at < range.start) {
            fragments.push(Fragment::Token(id));
        }
        fragments.push(Fragment::Text(range));
    }
    fragments.extend(found.map(|(_, id)| Fragment::Token(id)));
    fragments
}

#[derive(Clone, Copy, Debug)]
struct Leaf {
    id: TokenId,
    strips_right: bool,
}

/// A node's number in its tree.
type NodeIndex = u32;

#[derive(Debug, Default)]
struct Node {
    children: Vec<(u8, NodeIndex)>,
    leaf: Option<Leaf>,
}

impl Node {
    fn child(&self, byte: u8) -> Option<NodeIndex> {
        let at = self.children.binary_search_by_key(&byte, |&(key, _)| key).ok()?;
        Some(self.children[at].1)
    }
}

/// A tree of texts, byte by byte; node 0 is the root once there is any text.
#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
    /// The root's children again, by byte; 0 where there is none.
    roots: Vec<NodeIndex>,
    longest: usize,
}

impl Tree {
    fn insert(&mut self, text: &[u8], leaf: Leaf) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut node = 0;
        for &byte in text {
            node = match self.nodes[node].children.binary_search_by_key(&byte, |&(key, _)| key) {
                Ok(at) => self.nodes[node].children[at].1 as usize,
                Err(at) => {
                    let fresh = self.nodes.len();
                    self.nodes.push(Node::default());
                    self.nodes[node].children.insert(at, (byte, fresh as NodeIndex));
                    fresh
                }
            };
        }
        self.nodes[node].leaf = Some(leaf);
        self.longest = self.longest.max(text.len());
    }

    fn index_roots(&mut self) {
        self.roots = vec![0; 256];
        for &(byte, child) in self.nodes.first().map_or(&[][..], |root| &root.children) {
            self.roots[byte as usize] = child;
        }
    }

    /// The nodes along `text`, from its first byte on, while there are any.
    fn walk<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a Node> {
        let first = text.first().map_or(0, |&byte| self.roots[byte as usize]);
        let mut rest = text.iter().skip(1);
        let mut next = (first != 0).then_some(first);
        std::iter::from_fn(move || {
            let node = &self.nodes[next? as usize];
            next = rest.next().and_then(|&byte| node.child(byte));
            Some(node)
        })
    }

    fn exact(&self, text: &[u8]) -> Option<Leaf> {
        if self.roots[*text.first()? as usize] == 0 {
            return None;
        }
        self.walk(text).nth(text.len() - 1)?.leaf
    }

    /// The lengths in bytes of tokens that occur anywhere in `text`, ascending.
    fn lengths_in(&self, text: &[u8]) -> Vec<usize> {
        let mut occurs = vec![false; self.longest + 1];
        for (at, &byte) in text.iter().enumerate() {
            if self.roots[byte as usize] == 0 {
                continue;
            }
            for (depth, node) in self.walk(&text[at..]).enumerate() {
                occurs[depth + 1] |= node.leaf.is_some();
            }
        }
        (1..occurs.len()).filter(|&len| occurs[len]).collect()
    }
}
