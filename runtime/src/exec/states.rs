//! Memory between rounds: key/value caches, convolution and recurrent states, one part per sequence.
//!
//! A cache has slots in blocks of [`KV_BLOCK`] positions. A full cache has as many blocks per sequence as the context;
//! a windowed one is a ring just long enough that a round's new tokens never overwrite what its first token still sees,
//! so a round can be taken back by moving the position back. Farther back than rings reach, and with recurrent states,
//! a sequence goes by snapshots ([`Rewind`]).
//! Not here: who asks for it (`session.rs`), the arithmetic (`kernels::cpu::ops`).

use super::shared::{Place, Shared};
use half::f16;
use kernels::cpu::ops::ViewMut;
use kernels::cpu::ops::kv::{KV_BLOCK, KvView, KvViewMut, slot};
use plan_format::StateId;
use plan_format::program::{Program, StateKind};
use std::ops::Range;

/// Element type of the key/value caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub fn size_bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }
}

/// One state of the program with its memory for all sequences.
#[derive(Debug)]
enum Store {
    Kv { k: Shared, v: Option<Shared>, k_cols: usize, v_cols: usize, tables: Vec<Vec<u32>>, ring: Option<Ring> },
    Floats { memory: Shared, per_sequence: usize },
}

/// All states of a program.
#[derive(Debug)]
pub struct States {
    stores: Vec<Store>,
    kv_type: KvType,
}

/// A windowed cache that is shorter than the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// How many positions back a token may look, itself included.
    pub window_tokens: usize,
    /// Positions that the ring holds; position p is overwritten by p + `slots`.
    pub slots: usize,
}

/// How a sequence goes back to an earlier length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewind {
    /// By moving its position, anywhere: all caches hold the whole context.
    Anywhere,
    /// By moving its position as far as the shortest ring still holds the longest window; by snapshots beyond.
    Ring(Ring),
    /// By snapshots only: some state is recurrent.
    Snapshots,
}

/// Saved states of one sequence at one length: convolutions and recurrent states, and of each ring the window that the
/// next token sees. Whole caches need no saving: see the module text.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSnapshot {
    len_tokens: usize,
    floats: Vec<Vec<f32>>,
    windows: Vec<u8>,
}

impl StateSnapshot {
    /// Length of the sequence when it was taken.
    pub fn len_tokens(&self) -> usize {
        self.len_tokens
    }

    /// One without content.
    #[cfg(test)]
    pub(crate) fn empty(len_tokens: usize) -> Self {
        StateSnapshot { len_tokens, floats: Vec::new(), windows: Vec::new() }
    }
}

/// Sizes that bound the memory of states.
#[derive(Clone, Copy, Debug)]
pub struct StateLimits {
    /// Longest sequence in tokens.
    pub context_tokens: usize,
    /// Most tokens of a round.
    pub ubatch_tokens: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Cache elements.
    pub kv_type: KvType,
}

impl States {
    /// Zeroed states for a program.
    pub fn new(program: &Program, limits: StateLimits) -> Self {
        let stores = program.states.iter().map(|state| Store::new(state.kind, limits)).collect();
        Self { stores, kv_type: limits.kv_type }
    }

    /// Bytes of all states.
    pub fn size_bytes(&self) -> usize {
        self.stores.iter().map(Store::size_bytes).sum()
    }

    /// Physical block of each logical block of a sequence's cache.
    pub fn block_table(&self, state: StateId, sequence: u32) -> &[u32] {
        match &self.stores[state.index()] {
            Store::Kv { tables, .. } => &tables[sequence as usize],
            Store::Floats { .. } => &[],
        }
    }

    /// Keys and values of all sequences.
    ///
    /// # Safety
    /// No one writes the blocks that are read through the views.
    pub unsafe fn kv(&self, state: StateId) -> Option<(KvView<'_>, Option<KvView<'_>>)> {
        let Store::Kv { k, v, k_cols, v_cols, .. } = &self.stores[state.index()] else { return None };
        // SAFETY: as this function's contract.
        let view = |memory, cols| unsafe { kv_view(self.kv_type, memory, cols) };
        Some((view(k, *k_cols), v.as_ref().map(|v| view(v, *v_cols))))
    }

    /// Keys and values of all sequences, writable.
    ///
    /// # Safety
    /// No one else touches the slots that are written through the views.
    pub unsafe fn kv_mut(&self, state: StateId) -> Option<(KvViewMut<'_>, Option<KvViewMut<'_>>)> {
        let Store::Kv { k, v, k_cols, v_cols, .. } = &self.stores[state.index()] else { return None };
        // SAFETY: as this function's contract.
        let view = |memory, cols| unsafe { kv_view_mut(self.kv_type, memory, cols) };
        Some((view(k, *k_cols), v.as_ref().map(|v| view(v, *v_cols))))
    }

    /// Rows `rows` of a sequence's convolution or recurrent state, as a matrix of `cols` columns.
    ///
    /// # Safety
    /// No one else touches these rows while the view lives.
    pub unsafe fn rows_mut(&self, state: StateId, sequence: u32, rows: Range<usize>, cols: usize) -> ViewMut<'_> {
        let (memory, per_sequence) = match &self.stores[state.index()] {
            Store::Floats { memory, per_sequence } => (memory, *per_sequence),
            Store::Kv { k, .. } => (k, 0),
        };
        let offset_bytes = sequence as usize * per_sequence * 4;
        let place = Place { base_bytes: offset_bytes, offset_bytes, stride: cols, cols };
        // SAFETY: as this function's contract.
        unsafe { memory.view_mut(place, rows) }
    }

    /// How a sequence goes back.
    pub fn rewind(&self) -> Rewind {
        let rings = self.stores.iter().filter_map(|store| match store {
            Store::Kv { ring, .. } => *ring,
            Store::Floats { .. } => None,
        });
        let tightest = |a: Ring, b: Ring| Ring {
            window_tokens: a.window_tokens.max(b.window_tokens),
            slots: a.slots.min(b.slots),
        };
        if self.stores.iter().any(|store| matches!(store, Store::Floats { .. })) {
            return Rewind::Snapshots;
        }
        rings.reduce(tightest).map_or(Rewind::Anywhere, Rewind::Ring)
    }

    /// Copies what a sequence of `len_tokens` needs to come back to this length.
    pub fn save(&mut self, sequence: u32, len_tokens: usize) -> StateSnapshot {
        let floats = self.floats(sequence).map(|floats| floats.to_vec()).collect();
        let windows = self.windows(sequence, len_tokens).concat();
        StateSnapshot { len_tokens, floats, windows }
    }

    /// Puts saved states back. The snapshot must come from the same program.
    pub fn restore(&mut self, sequence: u32, snapshot: &StateSnapshot) {
        for (floats, saved) in self.floats(sequence).zip(&snapshot.floats) {
            floats.copy_from_slice(saved);
        }
        let mut saved = snapshot.windows.as_slice();
        for piece in self.windows(sequence, snapshot.len_tokens) {
            let (head, tail) = saved.split_at(piece.len());
            piece.copy_from_slice(head);
            saved = tail;
        }
    }

    /// Zeroes a sequence's convolution and recurrent states: the start of a sequence.
    pub fn clear(&mut self, sequence: u32) {
        self.floats(sequence).for_each(|floats| floats.fill(0.0));
    }

    fn floats(&mut self, sequence: u32) -> impl Iterator<Item = &mut [f32]> {
        self.stores.iter_mut().filter_map(move |store| match store {
            Store::Floats { memory, per_sequence } => {
                let offset_bytes = sequence as usize * *per_sequence * 4;
                // SAFETY: `self` is borrowed exclusively, so no round is running.
                Some(unsafe { memory.slice_mut(offset_bytes, *per_sequence) })
            }
            Store::Kv { .. } => None,
        })
    }

    /// The bytes of the rings' slots that hold the last window of a sequence of `len_tokens`, always in one order.
    fn windows(&mut self, sequence: u32, len_tokens: usize) -> Vec<&mut [u8]> {
        let element_bytes = self.kv_type.size_bytes();
        let mut pieces = Vec::new();
        for store in &self.stores {
            let Store::Kv { k, v, k_cols, v_cols, tables, ring: Some(ring) } = store else { continue };
            for slots in window_slots(&tables[sequence as usize], *ring, len_tokens) {
                for (memory, cols) in std::iter::once((k, *k_cols)).chain(v.as_ref().map(|v| (v, *v_cols))) {
                    let row_bytes = cols * element_bytes;
                    // SAFETY: `self` is borrowed exclusively, so no round is running, and a window is shorter than its
                    // ring, so no slot comes twice.
                    pieces.push(unsafe { memory.slice_mut(slots.start * row_bytes, slots.len() * row_bytes) });
                }
            }
        }
        pieces
    }
}

impl Store {
    fn new(kind: StateKind, limits: StateLimits) -> Self {
        match kind {
            StateKind::Kv { k_cols, v_cols, window_tokens } => {
                let (ring_blocks, whole_blocks) = (ring_blocks(window_tokens, limits), ring_blocks(None, limits));
                let slots = ring_blocks * KV_BLOCK * limits.sequences;
                let region = |cols: u32| Shared::new(slots * cols as usize * limits.kv_type.size_bytes());
                let tables = (0..limits.sequences).map(|sequence| block_table(sequence, ring_blocks, limits));
                let v = (v_cols > 0).then(|| region(v_cols));
                let (k_cols_, v_cols_) = (k_cols as usize, v_cols as usize);
                let tables = tables.collect();
                let ring = |window: u32| Ring { window_tokens: window as usize, slots: ring_blocks * KV_BLOCK };
                let ring = window_tokens.filter(|_| ring_blocks < whole_blocks).map(ring);
                Store::Kv { k: region(k_cols), v, k_cols: k_cols_, v_cols: v_cols_, tables, ring }
            }
            StateKind::Conv { channels, taps } => Self::floats(channels as usize * (taps as usize - 1), limits),
            StateKind::Recurrent { value_heads, head_cols } => {
                Self::floats(value_heads as usize * head_cols as usize * head_cols as usize, limits)
            }
        }
    }

    fn floats(per_sequence: usize, limits: StateLimits) -> Self {
        Store::Floats { memory: Shared::new(per_sequence * limits.sequences * 4), per_sequence }
    }

    fn size_bytes(&self) -> usize {
        match self {
            Store::Kv { k, v, .. } => k.size_bytes() + v.as_ref().map_or(0, Shared::size_bytes),
            Store::Floats { memory, .. } => memory.size_bytes(),
        }
    }
}

/// Blocks per sequence: the context, or for a window what the last round's first token sees plus the round itself.
fn ring_blocks(window_tokens: Option<u32>, limits: StateLimits) -> usize {
    let whole = limits.context_tokens.div_ceil(KV_BLOCK).max(1);
    let ring = |window: u32| (window as usize + limits.ubatch_tokens).div_ceil(KV_BLOCK) + 1;
    window_tokens.map_or(whole, |window| ring(window).min(whole))
}

/// Runs of slots of the last window of `len_tokens`, oldest first.
fn window_slots(table: &[u32], ring: Ring, len_tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let first = len_tokens.saturating_sub(ring.window_tokens);
    let starts = std::iter::once(first).chain((first / KV_BLOCK + 1..).map(|block| block * KV_BLOCK));
    starts.take_while(move |&start| start < len_tokens).map(move |start| {
        let end = len_tokens.min((start / KV_BLOCK + 1) * KV_BLOCK);
        let slot = slot(table, start as u32) as usize;
        slot..slot + end - start
    })
}

fn block_table(sequence: usize, ring_blocks: usize, limits: StateLimits) -> Vec<u32> {
    let logical = limits.context_tokens.div_ceil(KV_BLOCK).max(1);
    (0..logical).map(|block| (sequence * ring_blocks + block % ring_blocks) as u32).collect()
}

/// # Safety
/// No one writes what is read through the view.
unsafe fn kv_view(kv_type: KvType, memory: &Shared, cols: usize) -> KvView<'_> {
    match kv_type {
        // SAFETY: as this function's contract.
        KvType::F16 => KvView::F16(unsafe { memory.matrix::<f16>(cols) }),
        // SAFETY: as this function's contract.
        KvType::F32 => KvView::F32(unsafe { memory.matrix::<f32>(cols) }),
    }
}

/// # Safety
/// No one else touches what is written through the view.
unsafe fn kv_view_mut(kv_type: KvType, memory: &Shared, cols: usize) -> KvViewMut<'_> {
    match kv_type {
        // SAFETY: as this function's contract.
        KvType::F16 => KvViewMut::F16(unsafe { memory.matrix_mut::<f16>(cols) }),
        // SAFETY: as this function's contract.
        KvType::F32 => KvViewMut::F32(unsafe { memory.matrix_mut::<f32>(cols) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StateLimits =
        StateLimits { context_tokens: 1000, ubatch_tokens: 100, sequences: 2, kv_type: KvType::F16 };

    #[test]
    fn a_ring_holds_the_window_and_a_round() {
        assert_eq!(ring_blocks(None, LIMITS), 16);
        assert_eq!(ring_blocks(Some(8), LIMITS), 3, "108 positions span at most 3 blocks of 64");
        assert_eq!(ring_blocks(Some(5000), LIMITS), 16, "never more than the context");
    }

    #[test]
    fn a_window_is_found_in_its_ring() {
        let ring = Ring { window_tokens: 100, slots: 192 };
        let table = block_table(1, 3, LIMITS);
        let slots = |len_tokens| window_slots(&table, ring, len_tokens).collect::<Vec<_>>();
        assert!(slots(0).is_empty());
        assert_eq!(slots(30), Vec::from_iter(Some(192..222)), "the second sequence's blocks begin at slot 192");
        assert_eq!(slots(150), [242..256, 256..320, 320..342]);
        assert_eq!(slots(200), [292..320, 320..384, 192..200], "position 192 is in the first block again");
    }

    #[test]
    fn tables_of_sequences_do_not_share_blocks() {
        let (a, b) = (block_table(0, 3, LIMITS), block_table(1, 3, LIMITS));
        assert_eq!(&a[..5], [0, 1, 2, 0, 1]);
        assert_eq!(&b[..5], [3, 4, 5, 3, 4]);
    }
}
