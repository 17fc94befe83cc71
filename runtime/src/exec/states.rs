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
use std::sync::Arc;

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

/// Where a state's rows lie in its memory.
#[derive(Clone, Debug)]
pub enum StateLayout {
    /// Keys and values, `slots` rows for all sequences.
    Kv {
        /// Columns of the keys.
        k_cols: usize,
        /// Columns of the values; 0 = they are the keys' first columns.
        v_cols: usize,
        /// Slots of all sequences.
        slots: usize,
        /// Physical block of each logical block, by sequence.
        tables: Arc<Vec<Vec<u32>>>,
        /// Its window, if it is shorter than the context.
        ring: Option<Ring>,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// F32 of a convolution or a recurrence.
    Floats {
        /// Elements of one sequence.
        per_sequence: usize,
        /// Number of sequences.
        sequences: usize,
    },
}

/// One state of the program with its memory for all sequences: keys and values, or floats. No memory: the state lives
/// on the GPU.
#[derive(Debug)]
struct Store {
    layout: StateLayout,
    memory: Vec<Shared>,
}

/// All states of a program.
#[derive(Debug)]
pub struct States {
    stores: Vec<Store>,
    kv_type: KvType,
}

/// Bytes of a state that a snapshot of one sequence keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The state.
    pub state: StateId,
    /// 0 = keys or floats, 1 = values.
    pub region: usize,
    /// Bytes of the region.
    pub bytes: Range<usize>,
    /// Which slots, of keys and values.
    pub slots: Option<PieceSlots>,
}

/// Slots of a piece and the positions that they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceSlots {
    /// First slot.
    pub first_slot: u32,
    /// Its position; the others follow.
    pub first_position: u32,
    /// Number of slots.
    pub count: u32,
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
    /// Of all [`Piece`]s, in their order.
    bytes: Vec<u8>,
}

impl StateSnapshot {
    /// A snapshot of these bytes.
    pub(crate) fn new(len_tokens: usize, bytes: Vec<u8>) -> Self {
        StateSnapshot { len_tokens, bytes }
    }

    /// What was saved.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length of the sequence when it was taken.
    pub fn len_tokens(&self) -> usize {
        self.len_tokens
    }

    /// One without content.
    #[cfg(test)]
    pub(crate) fn empty(len_tokens: usize) -> Self {
        StateSnapshot { len_tokens, bytes: Vec::new() }
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

/// Gives memory for a region of a state, or none if the state lives elsewhere.
pub type TakeState<'a> = dyn FnMut(StateId, usize) -> Option<Shared> + 'a;

impl States {
    /// Zeroed states for a program, in memory from `take`.
    pub fn new(program: &Program, limits: StateLimits, take: &mut TakeState<'_>) -> Self {
        let store = |(index, state): (usize, &plan_format::program::State)| {
            let layout = StateLayout::new(state.kind, limits);
            let memory = layout.regions().into_iter().map_while(|bytes| take(StateId(index as u32), bytes)).collect();
            Store { layout, memory }
        };
        let stores = program.states.iter().enumerate().map(store).collect();
        Self { stores, kv_type: limits.kv_type }
    }

    /// Bytes of all states that are here.
    pub fn size_bytes(&self) -> usize {
        self.stores.iter().flat_map(|store| &store.memory).map(Shared::size_bytes).sum()
    }

    /// Where a state's rows lie.
    pub fn layout(&self, state: StateId) -> &StateLayout {
        &self.stores[state.index()].layout
    }

    /// Physical block of each logical block of a sequence's cache.
    pub fn block_table(&self, state: StateId, sequence: u32) -> &[u32] {
        match self.layout(state) {
            StateLayout::Kv { tables, .. } => &tables[sequence as usize],
            StateLayout::Floats { .. } => &[],
        }
    }

    /// Keys and values of all sequences.
    ///
    /// # Safety
    /// No one writes the blocks that are read through the views.
    pub unsafe fn kv(&self, state: StateId) -> Option<(KvView<'_>, Option<KvView<'_>>)> {
        let Store { layout: StateLayout::Kv { k_cols, v_cols, .. }, memory } = &self.stores[state.index()] else {
            return None;
        };
        // SAFETY: as this function's contract.
        let view = |memory, cols| unsafe { kv_view(self.kv_type, memory, cols) };
        Some((view(memory.first()?, *k_cols), memory.get(1).map(|v| view(v, *v_cols))))
    }

    /// Keys and values of all sequences, writable.
    ///
    /// # Safety
    /// No one else touches the slots that are written through the views.
    pub unsafe fn kv_mut(&self, state: StateId) -> Option<(KvViewMut<'_>, Option<KvViewMut<'_>>)> {
        let Store { layout: StateLayout::Kv { k_cols, v_cols, .. }, memory } = &self.stores[state.index()] else {
            return None;
        };
        // SAFETY: as this function's contract.
        let view = |memory, cols| unsafe { kv_view_mut(self.kv_type, memory, cols) };
        Some((view(memory.first()?, *k_cols), memory.get(1).map(|v| view(v, *v_cols))))
    }

    /// Rows `rows` of a sequence's convolution or recurrent state, as a matrix of `cols` columns.
    ///
    /// # Safety
    /// No one else touches these rows while the view lives.
    pub unsafe fn rows_mut(&self, state: StateId, sequence: u32, rows: Range<usize>, cols: usize) -> ViewMut<'_> {
        let Store { layout, memory } = &self.stores[state.index()];
        let per_sequence = match layout {
            StateLayout::Floats { per_sequence, .. } => *per_sequence,
            StateLayout::Kv { .. } => 0,
        };
        let offset_bytes = sequence as usize * per_sequence * 4;
        let place = Place { base_bytes: offset_bytes, offset_bytes, ..Place::rows_of(cols) };
        // SAFETY: as this function's contract.
        unsafe { memory[0].view_mut(place, rows) }
    }

    /// How a sequence goes back.
    pub fn rewind(&self) -> Rewind {
        let rings = self.stores.iter().filter_map(|store| match store.layout {
            StateLayout::Kv { ring, .. } => ring,
            StateLayout::Floats { .. } => None,
        });
        let tightest = |a: Ring, b: Ring| Ring {
            window_tokens: a.window_tokens.max(b.window_tokens),
            slots: a.slots.min(b.slots),
        };
        if self.stores.iter().any(|store| matches!(store.layout, StateLayout::Floats { .. })) {
            return Rewind::Snapshots;
        }
        rings.reduce(tightest).map_or(Rewind::Anywhere, Rewind::Ring)
    }

    /// What a snapshot of a sequence of `len_tokens` keeps, in order: all floats, and the last window of each ring.
    pub fn pieces(&self, sequence: u32, len_tokens: usize) -> Vec<Piece> {
        let of_store = |(index, store): (usize, &Store)| store.layout.pieces(index, sequence, len_tokens);
        self.stores.iter().enumerate().flat_map(of_store).collect()
    }

    /// The floats of a sequence, which are zero when it begins.
    pub fn floats(&self, sequence: u32) -> impl Iterator<Item = Piece> {
        self.pieces(sequence, 0).into_iter().filter(|piece| piece.slots.is_none())
    }

    /// The bytes of a piece; `None` if the state lives elsewhere.
    pub fn bytes_mut(&mut self, piece: &Piece) -> Option<&mut [u8]> {
        let memory = self.stores[piece.state.index()].memory.get(piece.region)?;
        // SAFETY: `self` is borrowed exclusively, so no round is running, and so is the result.
        Some(unsafe { memory.slice_mut(piece.bytes.start, piece.bytes.len()) })
    }
}

impl StateLayout {
    /// The layout of a state.
    pub fn new(kind: StateKind, limits: StateLimits) -> Self {
        match kind {
            StateKind::Kv { k_cols, v_cols, window_tokens } => {
                let (ring_blocks, whole_blocks) = (ring_blocks(window_tokens, limits), ring_blocks(None, limits));
                let tables = (0..limits.sequences).map(|sequence| block_table(sequence, ring_blocks, limits));
                let ring = |window: u32| Ring { window_tokens: window as usize, slots: ring_blocks * KV_BLOCK };
                StateLayout::Kv {
                    k_cols: k_cols as usize,
                    v_cols: v_cols as usize,
                    slots: ring_blocks * KV_BLOCK * limits.sequences,
                    tables: Arc::new(tables.collect()),
                    ring: window_tokens.filter(|_| ring_blocks < whole_blocks).map(ring),
                    element_bytes: limits.kv_type.size_bytes(),
                }
            }
            StateKind::Conv { channels, taps } => Self::floats(channels as usize * (taps as usize - 1), limits),
            StateKind::Recurrent { value_heads, head_cols } => {
                Self::floats(value_heads as usize * head_cols as usize * head_cols as usize, limits)
            }
        }
    }

    fn floats(per_sequence: usize, limits: StateLimits) -> Self {
        StateLayout::Floats { per_sequence, sequences: limits.sequences }
    }

    /// Bytes of its regions: keys and values, or floats.
    pub fn regions(&self) -> Vec<usize> {
        match *self {
            StateLayout::Kv { k_cols, v_cols, slots, element_bytes, .. } => {
                [k_cols, v_cols].into_iter().filter(|&cols| cols > 0).map(|cols| slots * cols * element_bytes).collect()
            }
            StateLayout::Floats { per_sequence, sequences } => vec![per_sequence * sequences * 4],
        }
    }

    fn pieces(&self, index: usize, sequence: u32, len_tokens: usize) -> Vec<Piece> {
        let state = StateId(index as u32);
        match self {
            StateLayout::Floats { per_sequence, .. } => {
                let first = sequence as usize * per_sequence * 4;
                vec![Piece { state, region: 0, bytes: first..first + per_sequence * 4, slots: None }]
            }
            StateLayout::Kv { k_cols, v_cols, tables, ring: Some(ring), element_bytes, .. } => {
                let cols = [*k_cols, *v_cols].into_iter().enumerate().filter(|(_, cols)| *cols > 0);
                let regions: Vec<(usize, usize)> = cols.map(|(region, cols)| (region, cols * element_bytes)).collect();
                let piece = |(position, slots): (usize, Range<usize>)| {
                    let (first_slot, first_position, count) = (slots.start as u32, position as u32, slots.len() as u32);
                    let held = Some(PieceSlots { first_slot, first_position, count });
                    let piece = move |&(region, row_bytes): &(usize, usize)| {
                        let bytes = slots.start * row_bytes..slots.end * row_bytes;
                        Piece { state, region, bytes, slots: held }
                    };
                    regions.iter().map(piece).collect::<Vec<_>>()
                };
                window_slots(&tables[sequence as usize], *ring, len_tokens).flat_map(piece).collect()
            }
            StateLayout::Kv { ring: None, .. } => Vec::new(),
        }
    }
}

/// Blocks per sequence: the context, or for a window what the last round's first token sees plus the round itself.
fn ring_blocks(window_tokens: Option<u32>, limits: StateLimits) -> usize {
    let whole = limits.context_tokens.div_ceil(KV_BLOCK).max(1);
    let ring = |window: u32| (window as usize + limits.ubatch_tokens).div_ceil(KV_BLOCK) + 1;
    window_tokens.map_or(whole, |window| ring(window).min(whole))
}

/// Runs of slots of the last window of `len_tokens` with their first positions, oldest first.
fn window_slots(table: &[u32], ring: Ring, len_tokens: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let first = len_tokens.saturating_sub(ring.window_tokens);
    let starts = std::iter::once(first).chain((first / KV_BLOCK + 1..).map(|block| block * KV_BLOCK));
    starts.take_while(move |&start| start < len_tokens).map(move |start| {
        let end = len_tokens.min((start / KV_BLOCK + 1) * KV_BLOCK);
        let slot = slot(table, start as u32) as usize;
        (start, slot..slot + end - start)
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
        let slots = |len_tokens| window_slots(&table, ring, len_tokens).map(|(_, slots)| slots).collect::<Vec<_>>();
        assert!(slots(0).is_empty());
        assert_eq!(slots(30), Vec::from_iter(Some(192..222)), "the second sequence's blocks begin at slot 192");
        assert_eq!(slots(150), [242..256, 256..320, 320..342]);
        assert_eq!(slots(200), [292..320, 320..384, 192..200], "position 192 is in the first block again");
        let positions: Vec<usize> = window_slots(&table, ring, 200).map(|(position, _)| position).collect();
        assert_eq!(positions, [100, 128, 192]);
    }

    #[test]
    fn tables_of_sequences_do_not_share_blocks() {
        let (a, b) = (block_table(0, 3, LIMITS), block_table(1, 3, LIMITS));
        assert_eq!(&a[..5], [0, 1, 2, 0, 1]);
        assert_eq!(&b[..5], [3, 4, 5, 3, 4]);
    }
}
