//! The round's inputs on their way to the GPU: written to mapped memory at the start of a round, and copied to GPU
//! memory by the first operator of the queue. Not here: what a round is (`exec/round.rs`). Next: `memory.rs`.

use super::ops::GpuInputs;
use crate::Error;
use crate::exec::shared::Shared;
use crate::exec::states::StateLayout;
use crate::exec::{Round, Span};
use device::gpu::{Access, DevicePtr, Gpu, MappedRegion};
use kernels::cpu::ops::kv::slot;
use plan_format::arena::RoundLimits;
use std::sync::Arc;

/// Alignment of each array.
const ALIGNMENT_BYTES: u64 = 256;

/// A distinct addressing of caches: how tokens get their slots.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Slots of all sequences.
    pub slots: usize,
    /// Slots of one sequence.
    per_sequence: usize,
    tables: Arc<Vec<Vec<u32>>>,
    token_slots_bytes: u64,
    n_slots_bytes: u64,
}

/// Offsets of the arrays in both memories.
#[derive(Clone, Debug, Default)]
pub struct InputLayout {
    tokens_bytes: u64,
    positions_bytes: u64,
    sequences_bytes: u64,
    outputs_bytes: u64,
    /// Addressings of the GPU's caches.
    pub geometries: Vec<Geometry>,
    /// Size of all arrays.
    pub size_bytes: u64,
}

impl InputLayout {
    /// Arrays for rounds up to the limits, with the addressings of these states.
    pub fn new<'a>(limits: RoundLimits, sequences: usize, states: impl Iterator<Item = &'a StateLayout>) -> Self {
        let mut layout = InputLayout::default();
        let (tokens, outputs) = (u64::from(limits.ubatch_tokens), u64::from(limits.output_tokens));
        layout.tokens_bytes = layout.array(tokens);
        layout.positions_bytes = layout.array(tokens);
        layout.sequences_bytes = layout.array(tokens);
        layout.outputs_bytes = layout.array(outputs);
        for state in states {
            let StateLayout::Kv { slots, tables, .. } = state else { continue };
            if layout.geometry(*slots).is_none() {
                let (token_slots_bytes, n_slots_bytes) = (layout.array(tokens), layout.array(1));
                let (slots, tables) = (*slots, Arc::clone(tables));
                let per_sequence = slots / sequences.max(1);
                let geometry = Geometry { slots, per_sequence, tables, token_slots_bytes, n_slots_bytes };
                layout.geometries.push(geometry);
            }
        }
        layout
    }

    fn array(&mut self, elements: u64) -> u64 {
        let start = self.size_bytes;
        self.size_bytes = (start + elements * 4).next_multiple_of(ALIGNMENT_BYTES);
        start
    }

    /// The addressing of caches with so many slots.
    pub fn geometry(&self, slots: usize) -> Option<&Geometry> {
        self.geometries.iter().find(|geometry| geometry.slots == slots)
    }

    /// The arrays in a memory that begins at `start`.
    pub fn at(&self, start: DevicePtr) -> GpuInputs {
        GpuInputs {
            tokens: start.offset(self.tokens_bytes),
            positions: start.offset(self.positions_bytes),
            sequences: start.offset(self.sequences_bytes),
            outputs: start.offset(self.outputs_bytes),
        }
    }
}

impl Geometry {
    /// Slots of the round's tokens, and the number of slots that may hold something.
    pub fn at(&self, start: DevicePtr) -> (DevicePtr, DevicePtr) {
        (start.offset(self.token_slots_bytes), start.offset(self.n_slots_bytes))
    }

    /// Slots up to the last that a span has reached.
    fn reached(&self, span: &Span, last_position: u32) -> usize {
        let own = (last_position as usize + 1).min(self.per_sequence);
        span.sequence as usize * self.per_sequence + own
    }
}

/// Mapped memory for the inputs.
pub struct Inputs {
    layout: InputLayout,
    mapped: MappedRegion,
    memory: Shared,
}

impl Inputs {
    /// Takes it. Errors: no mapped memory.
    pub fn new(gpu: &Arc<dyn Gpu>, layout: InputLayout) -> Result<Self, Error> {
        let mapped = gpu.take_mapped(layout.size_bytes, "the round's inputs")?;
        let memory = mapped_memory(gpu, mapped);
        Ok(Self { layout, mapped, memory })
    }

    /// Where the GPU finds them.
    pub fn device(&self) -> (DevicePtr, u64) {
        (self.mapped.device, self.layout.size_bytes)
    }

    /// Writes a round. The GPU has copied the one before. Errors: the simulated GPU has not.
    pub fn write(&mut self, gpu: &dyn Gpu, round: &Round) -> Result<(), Error> {
        gpu.host_touches(self.mapped.device, self.layout.size_bytes, Access::Write)?;
        let InputLayout { tokens_bytes, positions_bytes, sequences_bytes, outputs_bytes, .. } = self.layout;
        self.array(tokens_bytes, round.tokens.len()).copy_from_slice(round.tokens);
        self.array(positions_bytes, round.positions.len()).copy_from_slice(round.positions);
        self.array(outputs_bytes, round.outputs.len()).copy_from_slice(round.outputs);
        let sequences = self.array(sequences_bytes, round.tokens.len());
        for span in round.spans {
            sequences[span.tokens.clone()].fill(span.sequence);
        }
        for geometry in &self.layout.geometries {
            let slots = self.array(geometry.token_slots_bytes, round.tokens.len());
            let mut reached = 0;
            for span in round.spans {
                for token in span.tokens.clone() {
                    slots[token] = slot(&geometry.tables[span.sequence as usize], round.positions[token]);
                }
                let last = span.tokens.end.checked_sub(1).map_or(0, |last| round.positions[last]);
                reached = reached.max(geometry.reached(span, last));
            }
            self.array(geometry.n_slots_bytes, 1)[0] = reached as u32;
        }
        Ok(())
    }

    #[expect(clippy::mut_from_ref, reason = "arrays lie apart; writing them takes `&mut self`")]
    fn array(&self, offset_bytes: u64, len: usize) -> &mut [u32] {
        // SAFETY: only `write` comes here, which borrows the inputs exclusively; the GPU has read them when a round
        // ends.
        unsafe { self.memory.slice_mut(offset_bytes as usize, len) }
    }
}

/// Mapped memory as the CPU's operators see it.
pub fn mapped_memory(gpu: &Arc<dyn Gpu>, mapped: MappedRegion) -> Shared {
    let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(KeepGpu { _gpu: Arc::clone(gpu) });
    // SAFETY: the region is zeroed, page-aligned host memory that lives as long as the GPU, which the owner keeps.
    unsafe { Shared::of(mapped.host, mapped.bytes as usize, owner) }
}

struct KeepGpu {
    _gpu: Arc<dyn Gpu>,
}
