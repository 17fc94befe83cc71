//! GPU memory: what a plan needs, checked against the ceiling before anything is taken, then taken and filled.
//!
//! Regions: resident weights with the small ones, states, the round's inputs and angles, and a temporary one: the
//! maker's own with the activations, then slots with staging. Rounds of few tokens need little of the last; what they
//! hold lies there between prompts. Everything stays where it is for good. Not here: what moves in a round
//! (`driver.rs`).
//! Next: `states.rs`.

use super::inputs::InputLayout;
use super::ops::{GpuInputs, GpuKv, GpuSmall, GpuState, GpuWeight, OpMaker, Sizes, WeightShape};
use super::shrink::first_slots;
use crate::Error;
use crate::exec::WeightStore;
use crate::exec::states::{StateLayout, StateLimits};
use device::DeviceError;
use device::gpu::{DevicePtr, DeviceRegion, Gpu};
use kernels::cuda::{GpuLayout, tile_rows};
use kernels::quant::{pack_panels, packed_bytes, panels};
use plan_format::arena::Arena;
use plan_format::program::{Program, WeightRole};
use plan_format::schedule::{Held, Layout, Slots};
use plan_format::{StateId, ValueId, WeightId};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Addresses by index into the program's tables.
#[derive(Debug)]
pub struct GpuMap {
    /// Resident large weights.
    pub weights: Vec<Option<GpuWeight>>,
    /// Small weights that any operator on the GPU may read.
    pub smalls: Vec<Option<GpuSmall>>,
    /// States of resident items.
    pub states: Vec<Option<GpuState>>,
    /// Angles of each rotary table.
    pub trig: Vec<DevicePtr>,
    /// The round's inputs.
    pub inputs: GpuInputs,
}

/// What rounds up to a size work in.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    /// First byte of the activations.
    start: DevicePtr,
    /// Where each value lies.
    pub arena: Arena,
    /// The maker's memory.
    pub scratch: DeviceRegion,
}

impl Room {
    /// The maker's memory and behind it the activations, from `start` on.
    fn new(start: DevicePtr, arena: &Arena, scratch_bytes: u64) -> Room {
        let scratch = DeviceRegion { start, bytes: scratch_bytes };
        Room { start: start.offset(scratch_bytes.next_multiple_of(ALIGNMENT_BYTES)), arena: arena.clone(), scratch }
    }

    /// First byte of the activations.
    pub fn start(&self) -> DevicePtr {
        self.start
    }

    /// Where a value lies.
    pub fn value(&self, value: ValueId) -> DevicePtr {
        self.start.offset(self.arena.offsets_bytes[value.index()])
    }

    /// Bytes of both.
    fn bytes(arena: &Arena, scratch_bytes: u64) -> u64 {
        (scratch_bytes.next_multiple_of(ALIGNMENT_BYTES) + arena.size_bytes).next_multiple_of(ALIGNMENT_BYTES)
    }
}

/// Alignment of everything that is placed.
const ALIGNMENT_BYTES: u64 = 256;
/// Rows that are brought into another order at once.
const PIECE_ROWS: usize = 1024;
/// Pieces that are brought into order by all cores, before they are uploaded.
const PIECES_AT_ONCE: usize = 32;

/// What memory is planned for.
#[derive(Clone, Copy)]
pub struct Tenants<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its arena.
    pub arena: &'a Arena,
    /// The arena of rounds of few tokens, if those hold items.
    pub few_arena: Option<&'a Arena>,
    /// What they hold.
    pub held: &'a Held,
    /// The weights as the host has them, and the file.
    pub weights: &'a WeightStore,
    /// Orders of bytes as planned, by weight.
    pub layouts: &'a [Vec<Layout>],
    /// Items that are resident.
    pub resident: &'a [bool],
    /// Items that any schedule executes on the GPU, resident ones included.
    pub on_gpu: &'a [bool],
    /// Temporary memory.
    pub slots: &'a Slots,
    /// What bounds states.
    pub state_limits: StateLimits,
}

/// All that was taken.
pub struct GpuMemory {
    /// Who lies where.
    pub map: GpuMap,
    /// What rounds of all sizes work in.
    pub all: Room,
    /// What rounds of few tokens do instead, if they hold items.
    pub few: Option<Room>,
    /// First byte of both rooms: held items lie at offsets from it.
    pub temporary: DevicePtr,
    /// Slots and staging.
    pub slots: DeviceRegion,
    /// The round's inputs.
    pub inputs: DeviceRegion,
    /// Slots that there was room for.
    pub slot_count: usize,
}

/// Consecutive places in a region, handed out before its address is known.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    end_bytes: u64,
}

impl Places {
    fn add(&mut self, bytes: u64) -> u64 {
        let start = self.end_bytes;
        self.end_bytes = (start + bytes).next_multiple_of(ALIGNMENT_BYTES);
        start
    }
}

/// Offsets of everything in its region.
struct Layouts {
    weights: Places,
    states: Places,
    rounds: Places,
    large: Vec<Option<(u64, Layout, u64)>>,
    small: Vec<Option<u64>>,
    kept: Vec<Option<StatePlaces>>,
    inputs: u64,
    trig: Vec<u64>,
}

/// What rounds work in, in bytes.
#[derive(Clone, Copy, Default)]
struct Work {
    scratch_bytes: u64,
    few_scratch_bytes: u64,
    slots_at_bytes: u64,
}

struct StatePlaces {
    layout: StateLayout,
    regions: Vec<u64>,
    slot_arrays: [u64; 2],
}

impl Tenants<'_> {
    /// Whether any schedule runs anything on the GPU.
    pub fn uses_gpu(&self) -> bool {
        self.on_gpu.contains(&true)
    }

    /// Weights that operators of some items read.
    fn weights_of(&self, items: &[bool]) -> Vec<bool> {
        let mut used = vec![false; self.program.weights.len()];
        for op in self.program.ops.iter().filter(|op| items[op.item.index()]) {
            op.kind.weights().for_each(|weight| used[weight.index()] = true);
        }
        used
    }

    fn layouts(&self, maker: &dyn OpMaker, inputs: &InputLayout, ropes: &[u64]) -> Result<Layouts, Error> {
        let (mut weights, mut states, mut rounds) = (Places::default(), Places::default(), Places::default());
        let (resident, mut touched) = (self.weights_of(self.resident), self.weights_of(self.on_gpu));
        // No operator reads them, but makers compute angles with them.
        let ropes_here = self.program.ropes.iter().filter(|_| self.uses_gpu());
        for factors in ropes_here.filter_map(|rope| rope.factors) {
            touched[factors.index()] = true;
        }
        let (mut large, mut small) = (Vec::new(), Vec::new());
        for (index, weight) in self.program.weights.iter().enumerate() {
            let shape = self.weights.shape(WeightId(index as u32));
            let is_small = weight.role == WeightRole::Small;
            small.push((is_small && touched[index]).then(|| weights.add(shape.elements() * 4)));
            large.push(if !is_small && resident[index] {
                let planned = self.layouts.get(index).and_then(|parts| parts.first()).copied();
                let layout = maker.resident_layout(&shape, planned.unwrap_or(Layout::Gguf));
                let stride = matrix_bytes(&shape, layout)?;
                Some((weights.add(stride * shape.stack as u64), layout, stride))
            } else {
                None
            });
        }
        let kept = self.resident_states().into_iter().map(|layout| layout.map(|l| StatePlaces::new(l, &mut states)));
        let kept = kept.collect();
        // A plan for the CPU alone takes nothing on the GPU of a simulated machine.
        let on_gpu = |bytes: u64| if self.uses_gpu() { bytes } else { 0 };
        let inputs = rounds.add(on_gpu(inputs.size_bytes));
        let trig = ropes.iter().map(|&bytes| rounds.add(on_gpu(bytes))).collect();
        Ok(Layouts { weights, states, rounds, large, small, kept, inputs, trig })
    }

    /// Bytes of the maker's memory for all rounds and for those of few tokens, and where slots begin behind what all
    /// rounds work in. Errors: sizes that no kernel takes, held items on what rounds of few tokens work in.
    fn work(&self, maker: &dyn OpMaker, sizes: &Sizes) -> Result<Work, Error> {
        if !self.uses_gpu() {
            return Ok(Work::default());
        }
        let scratch_bytes = maker.scratch_bytes(self.program, sizes)?;
        let work_bytes = Room::bytes(self.arena, scratch_bytes);
        let Some(few_arena) = self.few_arena else {
            return Ok(Work { scratch_bytes, few_scratch_bytes: 0, slots_at_bytes: work_bytes });
        };
        let few_scratch_bytes = maker.scratch_bytes(self.program, &Sizes { limits: few_arena.limits, ..*sizes })?;
        let few_bytes = Room::bytes(few_arena, few_scratch_bytes);
        if self.held.items.iter().any(|held| held.offset_bytes < few_bytes) {
            return Err(Error::Program { what: "held items lie where rounds of few tokens work" });
        }
        let slots_at_bytes = self.held.slots_at_bytes.max(work_bytes).next_multiple_of(ALIGNMENT_BYTES);
        Ok(Work { scratch_bytes, few_scratch_bytes, slots_at_bytes })
    }

    /// Layout of each state that lives on the GPU.
    pub fn resident_states(&self) -> Vec<Option<StateLayout>> {
        let mut layouts = vec![None; self.program.states.len()];
        for (item, _) in self.program.items.iter().zip(self.resident).filter(|(_, resident)| **resident) {
            for state in &item.states {
                let kind = self.program.states[state.index()].kind;
                layouts[state.index()] = Some(StateLayout::new(kind, self.state_limits));
            }
        }
        layouts
    }

    /// Takes all memory, and uploads the weights. Where others have taken so much that the slots do not fit, there are
    /// fewer of them. Errors: more than the ceiling leaves, or than others do without slots, before anything is taken.
    pub fn move_in(
        &self,
        gpu: &dyn Gpu,
        maker: &dyn OpMaker,
        inputs: &InputLayout,
        trig_bytes: &[u64],
        sizes: &Sizes,
    ) -> Result<GpuMemory, Error> {
        let layouts = self.layouts(maker, inputs, trig_bytes)?;
        let work = self.work(maker, sizes)?;
        let wanted = [
            ("resident weights", layouts.weights.end_bytes),
            ("states of resident items", layouts.states.end_bytes),
            ("inputs and angles", layouts.rounds.end_bytes),
            ("activations and working memory of kernels", work.slots_at_bytes),
            ("temporary slots", self.slots.total_bytes()),
        ];
        check_budget(gpu, &wanted)?;
        let take = |(purpose, bytes): (&str, u64)| gpu.take_memory(bytes, purpose);
        let [weights, states, rounds, ..] = wanted;
        let (weights, states, rounds) = (take(weights)?, take(states)?, take(rounds)?);
        let (temporary, slot_count) = self.take_temporary(gpu, work.slots_at_bytes)?;
        let map = layouts.map(self, [weights.start, states.start, rounds.start], inputs);
        self.upload(gpu, &map)?;
        zero_states(gpu, states)?;
        for state in map.states.iter().flatten() {
            mark_empty(gpu, state)?;
        }
        let inputs = DeviceRegion { start: rounds.start.offset(layouts.inputs), bytes: inputs.size_bytes };
        let (start, slots_at) = (temporary.start, work.slots_at_bytes);
        let slots = DeviceRegion { start: start.offset(slots_at), bytes: temporary.bytes.saturating_sub(slots_at) };
        let all = Room::new(start, self.arena, work.scratch_bytes);
        let few = self.few_arena.map(|arena| Room::new(start, arena, work.few_scratch_bytes));
        Ok(GpuMemory { map, all, few, temporary: start, slots, inputs, slot_count })
    }

    /// What all rounds work in, and as many slots behind it as there is room for.
    fn take_temporary(&self, gpu: &dyn Gpu, work_bytes: u64) -> Result<(DeviceRegion, usize), Error> {
        let mut count = self.slots.slots.len();
        loop {
            let bytes = work_bytes + first_slots(self.slots, count).total_bytes();
            match gpu.take_memory(bytes, "activations and temporary slots") {
                Err(DeviceError::GpuMemory { .. }) if count > 0 => count -= 1,
                outcome => return Ok((outcome?, count)),
            }
        }
    }

    fn upload(&self, gpu: &dyn Gpu, map: &GpuMap) -> Result<(), Error> {
        for (index, small) in map.smalls.iter().enumerate() {
            if let Some(small) = small {
                gpu.upload(small.start, bytemuck::cast_slice(self.weights.small(WeightId(index as u32))))?;
            }
        }
        let large = map.weights.iter().enumerate().filter_map(|(index, weight)| Some((index, weight.as_ref()?)));
        let pieces: Vec<Piece> =
            large.flat_map(|(index, weight)| self.pieces(WeightId(index as u32), weight)).collect();
        for batch in pieces.chunks(PIECES_AT_ONCE) {
            let ready = batch.par_iter().map(Piece::bytes).collect::<Result<Vec<_>, Error>>()?;
            for (piece, (offset, bytes)) in batch.iter().zip(&ready) {
                gpu.upload(piece.to.offset(*offset), bytes)?;
            }
        }
        Ok(())
    }

    /// The pieces in which a weight is brought into its order and uploaded.
    fn pieces<'a>(&'a self, id: WeightId, weight: &'a GpuWeight) -> impl Iterator<Item = Piece<'a>> {
        let firsts = move || (0..weight.shape.rows).step_by(PIECE_ROWS);
        (0..weight.shape.stack).flat_map(move |slice| {
            let file = self.weights.file_matrix(id, slice);
            let to = weight.start.offset(slice as u64 * weight.stride_bytes);
            firsts().map(move |first| {
                let rows = first..weight.shape.rows.min(first + PIECE_ROWS);
                Piece { file, weight, rows, to }
            })
        })
    }
}

/// Whether all fits; if only others are in the way, whether all but the last does.
fn check_budget(gpu: &dyn Gpu, wanted: &[(&'static str, u64)]) -> Result<(), Error> {
    let sum = |wanted: &[(&str, u64)]| wanted.iter().map(|(_, bytes)| bytes.next_multiple_of(ALIGNMENT_BYTES)).sum();
    let (needed_bytes, device::gpu::GpuMemory { free_bytes, unclaimed_bytes, .. }) = (sum(wanted), gpu.memory()?);
    let least_bytes: u64 = sum(&wanted[..wanted.len() - 1]);
    if needed_bytes <= free_bytes || (needed_bytes > unclaimed_bytes && least_bytes <= free_bytes) {
        return Ok(());
    }
    let parts = wanted.iter().map(|(what, bytes)| format!("{what} {} MiB", bytes.div_ceil(1 << 20)));
    let parts = parts.collect::<Vec<_>>().join(", ");
    Err(Error::GpuBudget { needed_bytes, free_bytes, parts })
}

/// Caches are zeroed once, so that what was never written is at least a number.
fn zero_states(gpu: &dyn Gpu, states: DeviceRegion) -> Result<(), Error> {
    const PIECE_BYTES: u64 = 4 << 20;
    let zeros = vec![0; PIECE_BYTES.min(states.bytes) as usize];
    for start in (0..states.bytes).step_by(PIECE_BYTES as usize) {
        let piece = &zeros[..PIECE_BYTES.min(states.bytes - start) as usize];
        gpu.upload(states.start.offset(start), piece)?;
    }
    Ok(())
}

/// No slot of a new cache holds a position.
fn mark_empty(gpu: &dyn Gpu, state: &GpuState) -> Result<(), Error> {
    if let GpuState::Kv(kv) = state {
        let nothing = vec![-1_i32; kv.slots as usize];
        for array in [kv.slot_positions, kv.slot_sequences] {
            gpu.upload(array, bytemuck::cast_slice(&nothing))?;
        }
    }
    Ok(())
}

impl StatePlaces {
    fn new(layout: StateLayout, states: &mut Places) -> Self {
        let regions = layout.regions().into_iter().map(|bytes| states.add(bytes as u64)).collect();
        let slots = match layout {
            StateLayout::Kv { slots, .. } => slots as u64,
            StateLayout::Floats { .. } => 0,
        };
        let slot_arrays = [states.add(slots * 4), states.add(slots * 4)];
        StatePlaces { layout, regions, slot_arrays }
    }

    fn at(&self, start: DevicePtr, inputs: &InputLayout, inputs_start: DevicePtr) -> GpuState {
        match &self.layout {
            StateLayout::Floats { per_sequence, .. } => {
                GpuState::Floats { start: start.offset(self.regions[0]), per_sequence: *per_sequence as u64 }
            }
            StateLayout::Kv { k_cols, v_cols, slots, tables, .. } => {
                let [slot_positions, slot_sequences] = self.slot_arrays.map(|offset| start.offset(offset));
                let geometry = inputs.geometry(*slots).map(|geometry| geometry.at(inputs_start));
                let (token_slots, n_slots) = geometry.unwrap_or((inputs_start, inputs_start));
                GpuState::Kv(GpuKv {
                    keys: start.offset(self.regions[0]),
                    values: self.regions.get(1).map(|&offset| start.offset(offset)),
                    k_cols: *k_cols as u32,
                    v_cols: *v_cols as u32,
                    slots: *slots as u32,
                    slot_positions,
                    slot_sequences,
                    token_slots,
                    n_slots,
                    tables: tables.clone(),
                })
            }
        }
    }
}

impl Layouts {
    fn map(&self, tenants: &Tenants, [weights, states, rounds]: [DevicePtr; 3], inputs: &InputLayout) -> GpuMap {
        let shape = |index: usize| tenants.weights.shape(WeightId(index as u32));
        let large = |(index, place): (usize, &Option<(u64, Layout, u64)>)| {
            let (offset, layout, stride_bytes) = (*place)?;
            let start = weights.offset(offset);
            let shape = shape(index);
            Some(GpuWeight { shape, layout, start, stride_bytes, places: None, room: shape.stack })
        };
        let small = |(index, place): (usize, &Option<u64>)| {
            let start = weights.offset((*place)?);
            Some(GpuSmall { start, len: shape(index).elements() as usize })
        };
        let inputs_start = rounds.offset(self.inputs);
        let state = |place: &Option<StatePlaces>| Some(place.as_ref()?.at(states, inputs, inputs_start));
        GpuMap {
            weights: self.large.iter().enumerate().map(large).collect(),
            smalls: self.small.iter().enumerate().map(small).collect(),
            states: self.kept.iter().map(state).collect(),
            trig: self.trig.iter().map(|&offset| rounds.offset(offset)).collect(),
            inputs: inputs.at(inputs_start),
        }
    }
}

impl GpuMap {
    /// Where bytes of a state's region lie; `None` if the state is not on the GPU.
    pub fn state_bytes(&self, state: StateId, region: usize, bytes: &Range<usize>) -> Option<DevicePtr> {
        let start = match (self.states[state.index()].as_ref()?, region) {
            (GpuState::Floats { start, .. }, _) => *start,
            (GpuState::Kv(kv), 0) => kv.keys,
            (GpuState::Kv(kv), _) => kv.values?,
        };
        Some(start.offset(bytes.start as u64))
    }
}

impl WeightShape {
    /// Numbers of all matrices.
    pub fn elements(&self) -> u64 {
        (self.rows * self.cols * self.stack) as u64
    }
}

/// Bytes from one matrix of a stack to the next.
pub fn matrix_bytes(shape: &WeightShape, layout: Layout) -> Result<u64, Error> {
    let WeightShape { ty, rows, cols, .. } = *shape;
    Ok(match layout {
        Layout::Gguf => (ty.row_bytes(cols)? * rows) as u64,
        Layout::CpuPanel16 => packed_bytes(ty, rows, cols)?.next_multiple_of(64) as u64,
        Layout::GpuTiled => (GpuLayout::Tiled.row_bytes(ty, cols)? * rows) as u64,
    })
}

/// Some rows of a matrix on their way to the GPU.
struct Piece<'a> {
    /// The whole matrix as in the file.
    file: &'a [u8],
    weight: &'a GpuWeight,
    rows: Range<usize>,
    /// First byte of the matrix on the GPU.
    to: DevicePtr,
}

impl Piece<'_> {
    /// The rows in the order of the GPU, and where they begin in the matrix there.
    fn bytes(&self) -> Result<(u64, Cow<'_, [u8]>), Error> {
        let WeightShape { ty, rows, cols, .. } = self.weight.shape;
        let (first, last) = (self.rows.start, self.rows.end);
        let row_bytes = ty.row_bytes(cols)?;
        let source = &self.file[first * row_bytes..last * row_bytes];
        Ok(match self.weight.layout {
            Layout::Gguf => ((first * row_bytes) as u64, Cow::Borrowed(source)),
            Layout::CpuPanel16 => {
                let panel_bytes = packed_bytes(ty, 1, cols)?;
                let range = first / 16..panels(last);
                let mut packed = vec![0; range.len() * panel_bytes];
                pack_panels(ty, self.file, rows, cols, range.clone(), &mut packed)?;
                ((range.start * panel_bytes) as u64, Cow::Owned(packed))
            }
            Layout::GpuTiled => {
                let tiled_bytes = GpuLayout::Tiled.row_bytes(ty, cols)?;
                let mut tiled = vec![0; (last - first) * tiled_bytes];
                tile_rows(ty, cols, source, &mut tiled)?;
                ((first * tiled_bytes) as u64, Cow::Owned(tiled))
            }
        })
    }
}
