//! Scripts bound to a GPU: every command with the operators that carry it out, made once at load. Schedules that run
//! the same items in the same place share them. Not here: when they are queued (`driver.rs`). Next: `sim.rs`.

use super::crossings::{Crossing, ItemAccess, Side, ops};
use super::fills::{Fill, FillKind};
use super::memory::{GpuMemory, matrix_bytes};
use super::ops::{GpuWeight, Move, OpEnv, OpMaker, Sizes};
use super::routed::{RoutedFill, RoutedStack};
use super::script::{Command, Scene, Script};
use super::staging::{HostCopies, PartCycle, StagingArea};
use crate::Error;
use crate::exec::WeightStore;
use crate::exec::shared::Place;
use device::gpu::{DevicePtr, GpuOp, HostSpan, MappedRegion};
use device::timeline::FillStep;
use plan_format::WeightId;
use plan_format::arena::Arena;
use plan_format::operands::Columns;
use plan_format::program::{OpKind, Program, View, WeightRole};
use plan_format::schedule::{Home, Layout, Phase, Placement, Promotion, Schedule, Slots};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What schedules are bound to.
#[derive(Clone, Copy)]
pub struct Binder<'a> {
    /// The program.
    pub program: &'a Program,
    /// Where values lie.
    pub arena: &'a Arena,
    /// Where items live.
    pub placement: &'a Placement,
    /// Temporary memory.
    pub slots: &'a Slots,
    /// What bounds rounds.
    pub sizes: Sizes,
    /// Host weights.
    pub weights: &'a WeightStore,
    /// GPU memory.
    pub memory: &'a GpuMemory,
    /// Where pieces of streamed weights arrive.
    pub staging: StagingArea,
    /// The host's arena as the GPU reaches it.
    pub host_arena: MappedRegion,
    /// Whether the copy engine reads host weights as they lie.
    pub host_copies: HostCopies,
    /// Tables of streamed experts in mapped memory, with their offsets by item.
    pub tables: (Option<MappedRegion>, &'a [Option<u64>]),
    /// Who makes operators.
    pub maker: &'a dyn OpMaker,
}

/// Operators of one command.
pub type Operators = Arc<Vec<Arc<dyn GpuOp>>>;

/// A schedule ready to run.
pub struct Bound {
    /// The script.
    pub script: Script,
    /// By command; empty for those that launch nothing.
    pub operators: Vec<Operators>,
    /// By promotion: the number of its fill in [`Made::distinct`].
    pub fills: Vec<usize>,
    /// Slot of each promotion.
    pub slots: Vec<usize>,
    /// Item of each promotion.
    pub items: Vec<u32>,
}

/// Where the streamed weights of a run lie, and how many matrices there is room for.
type Lies = Vec<(DevicePtr, usize)>;

/// Operators made so far. Streamed weights are known by where they lie.
#[derive(Default)]
pub struct Made {
    runs: HashMap<(Range<usize>, Lies), Operators>,
    moves: Vec<(Side, Vec<Crossing>, Operators)>,
    fills: HashMap<(usize, bool, Lies), usize>,
    /// Fills that schedules share.
    pub distinct: Vec<Fill>,
}

impl<'a> Binder<'a> {
    /// Items that a schedule executes on the GPU.
    pub fn on_gpu(placement: &Placement, schedule: &Schedule) -> Vec<bool> {
        let mut on_gpu: Vec<bool> = placement.homes.iter().map(|home| *home == Home::Resident).collect();
        for promotion in &schedule.promotions {
            on_gpu[promotion.item.index()] = true;
        }
        on_gpu
    }

    /// What makers see.
    pub fn env<'b>(&'b self, streamed: &'b [(WeightId, GpuWeight)]) -> OpEnv<'b> {
        OpEnv {
            program: self.program,
            sizes: self.sizes,
            inputs: self.memory.map.inputs,
            scratch: self.memory.scratch,
            map: &self.memory.map,
            streamed,
        }
    }

    /// Binds a schedule. Errors: an operator that cannot be made, a promotion that does not fit its slot.
    pub fn bind(&self, access: &ItemAccess, schedule: &Schedule, made: &mut Made) -> Result<Bound, Error> {
        let on_gpu = Self::on_gpu(self.placement, schedule);
        let Binder { program, arena, slots, .. } = *self;
        let tokens = phase_tokens(schedule.phase);
        let promotions = &schedule.promotions;
        let streamed = promotions.iter().map(|promotion| self.streamed(promotion, tokens));
        let streamed = streamed.collect::<Result<Vec<_>, Error>>()?;
        let ids_of = |(promotion, weights): (&Promotion, &Vec<(WeightId, GpuWeight)>)| {
            weights
                .iter()
                .any(|(_, place)| place.places.is_some())
                .then(|| ids(program, promotion.item.index()))
                .flatten()
        };
        let routed: Vec<Option<View>> = promotions.iter().zip(&streamed).map(ids_of).collect();
        let columns: Vec<Option<Columns>> = routed.iter().map(|view| view.map(Columns::from)).collect();
        let scene = Scene { program, access, arena, on_gpu: &on_gpu, promotions, slots, routed: &columns };
        let script = Script::new(scene);
        let operators = script.commands.iter().map(|command| {
            Ok(match command {
                Command::Run(items, promotion) => {
                    let weights = promotion.map_or(&[][..], |index| &streamed[index]);
                    self.run(items.clone(), weights, made)?
                }
                Command::Move(side, crossings) => self.mover(*side, crossings, made)?,
                _ => Operators::default(),
            })
        });
        let operators = operators.collect::<Result<Vec<_>, Error>>()?;
        let fills = promotions
            .iter()
            .zip(&streamed)
            .zip(&routed)
            .map(|((promotion, weights), ids)| self.shared_fill(promotion.item.index(), weights, *ids, made));
        let fills = fills.collect::<Result<Vec<_>, Error>>()?;
        let slots = promotions.iter().map(|promotion| promotion.slot.index()).collect();
        let items = promotions.iter().map(|promotion| promotion.item.0).collect();
        Ok(Bound { script, operators, fills, slots, items })
    }

    fn run(&self, items: Range<usize>, streamed: &Streamed, made: &mut Made) -> Result<Operators, Error> {
        let key = (items.clone(), lies(streamed));
        if let Some(known) = made.runs.get(&key) {
            return Ok(Arc::clone(known));
        }
        let range = ops(self.program, items.start).start..ops(self.program, items.end - 1).end;
        let operators: Operators = Arc::new(self.maker.run(range, &self.env(streamed))?);
        made.runs.insert(key, Arc::clone(&operators));
        Ok(operators)
    }

    fn mover(&self, side: Side, crossings: &[Crossing], made: &mut Made) -> Result<Operators, Error> {
        let known = made.moves.iter().find(|(to, list, _)| *to == side && list == crossings);
        if let Some((_, _, known)) = known {
            return Ok(Arc::clone(known));
        }
        let moves: Vec<Move> = crossings.iter().map(|crossing| self.movement(side, crossing)).collect();
        let operators: Operators = Arc::new(vec![self.maker.mover(&moves)?]);
        made.moves.push((side, crossings.to_vec(), Arc::clone(&operators)));
        Ok(operators)
    }

    fn movement(&self, side: Side, crossing: &Crossing) -> Move {
        let columns = crossing.columns;
        let value = &self.program.values[columns.value.index()];
        let offset = self.arena.offsets_bytes[columns.value.index()] + u64::from(columns.first_col) * 4;
        let (host, gpu) = (self.host_arena.device.offset(offset), self.memory.map.arena.offset(offset));
        let (from, to) = match side {
            Side::Gpu => (host, gpu),
            Side::Host => (gpu, host),
        };
        let (rows, stride) = (value.rows, value.cols);
        let (groups, group_stride, width) = match columns.stride == columns.width {
            true => (1, columns.width * columns.groups, columns.width * columns.groups),
            false => (columns.groups, columns.stride, columns.width),
        };
        Move { from, to, rows, stride, groups, group_stride, width }
    }

    /// Where the weights of a promoted item lie in a slot, in a round of so many tokens. Of stacks of experts as many
    /// as the round may choose, where those are fewer than there are or the slot holds no more; else everything.
    /// Errors: they do not fit.
    fn streamed(&self, promotion: &Promotion, tokens: usize) -> Result<Vec<(WeightId, GpuWeight)>, Error> {
        let (item, slot) = (promotion.item.index(), self.slots.slots[promotion.slot.index()]);
        let slot_bytes = slot.size_bytes.next_multiple_of(256);
        let (whole, whole_bytes) = self.placed(item, slot.offset_bytes, None)?;
        let chosen = chosen(self.program, item) * tokens;
        let experts = whole.iter().map(|(_, place)| place.shape.stack).max().unwrap_or(0);
        if whole_bytes <= slot_bytes && !is_few(chosen, experts) {
            return Ok(whole);
        }
        let (routed, routed_bytes) = self.placed(item, slot.offset_bytes, Some(chosen))?;
        if chosen > 0 && routed_bytes <= slot_bytes && self.table(item).is_some() {
            return Ok(routed);
        }
        let item = self.program.items[item].name.clone();
        Err(Error::SlotTooSmall { item, needed_bytes: whole_bytes.min(routed_bytes), slot_bytes: slot.size_bytes })
    }

    /// The weights of an item one after the other in a slot, and where they end. With `experts`, stacks have room for
    /// so many.
    fn placed(
        &self,
        item: usize,
        offset_bytes: u64,
        experts: Option<usize>,
    ) -> Result<(Vec<(WeightId, GpuWeight)>, u64), Error> {
        let (mut end, mut list) = (0, Vec::new());
        for &weight in &self.program.items[item].weights {
            let role = self.program.weights[weight.index()].role;
            if role == WeightRole::Small {
                continue;
            }
            let shape = self.weights.shape(weight);
            let layout = self.maker.slot_layout(&shape);
            let stride_bytes = matrix_bytes(&shape, layout)?;
            let start = self.memory.slots.start.offset(offset_bytes + end);
            let experts = experts.filter(|_| role == WeightRole::Experts);
            let room = experts.map_or(shape.stack, |experts| experts.min(shape.stack));
            let table = experts.and(self.table(item));
            let places = table.map(|(mapped, offset)| mapped.device.offset(offset));
            let place = GpuWeight { shape, layout, start, stride_bytes, places, room };
            list.push((weight, place));
            end = (end + place.size_bytes()).next_multiple_of(256);
        }
        Ok((list, end))
    }

    /// The table of places of an item's streamed experts, in mapped memory at an offset.
    fn table(&self, item: usize) -> Option<(MappedRegion, u64)> {
        self.tables.0.zip(self.tables.1[item])
    }

    /// The number of a fill: schedules that stream an item to the same place share it.
    fn shared_fill(&self, item: usize, weights: &Streamed, ids: Option<View>, made: &mut Made) -> Result<usize, Error> {
        let key = (item, ids.is_some(), lies(weights));
        if let Some(&known) = made.fills.get(&key) {
            return Ok(known);
        }
        let kind = match ids {
            Some(ids) => FillKind::Routed(Box::new(self.routed_fill(item, weights, ids)?)),
            None => FillKind::Whole(self.fill(weights, &mut self.staging.cycle())?),
        };
        made.distinct.push(Fill::new(kind, self.host_copies));
        made.fills.insert(key, made.distinct.len() - 1);
        Ok(made.distinct.len() - 1)
    }

    /// How a slot gets the experts that a round chooses.
    fn routed_fill(&self, item: usize, weights: &Streamed, ids: View) -> Result<RoutedFill, Error> {
        let (whole, stacks): (Vec<_>, Vec<_>) = weights.iter().copied().partition(|(_, place)| place.places.is_none());
        let no_table = Error::Program { what: "streamed experts without a table of places" };
        let table = self.table(item).ok_or(no_table)?;
        let stride = self.program.values[ids.value.index()].cols as usize;
        let base_bytes = self.arena.offsets_bytes[ids.value.index()] as usize;
        let offset_bytes = base_bytes + ids.first_col as usize * 4;
        let mut cycle = self.staging.cycle();
        let whole = self.fill(&whole, &mut cycle)?;
        let routed = stacks.iter().map(|(weight, place)| self.routed_stack(*weight, *place, &mut cycle));
        let routed = routed.collect::<Result<Vec<_>, Error>>()?;
        Ok(RoutedFill {
            ids: Place { base_bytes, offset_bytes, stride, ..Place::rows_of(ids.cols as usize) },
            ids_start: self.host_arena.device.offset(base_bytes as u64),
            whole,
            experts: stacks.first().map_or(0, |(_, place)| place.shape.stack),
            stacks: routed,
            table,
            host_copies: self.host_copies,
        })
    }

    fn routed_stack(&self, weight: WeightId, place: GpuWeight, cycle: &mut PartCycle) -> Result<RoutedStack, Error> {
        let host = self.host_span(weight)?;
        let host_stride = matrix_bytes(&place.shape, Layout::CpuPanel16)? as usize;
        let unpacks = self.maker.unpacks(&place.shape);
        let passage = unpacks.then(|| self.staging.passage(self.maker, &place, cycle)).transpose()?;
        Ok(RoutedStack { host, host_stride, place, passage })
    }

    fn host_span(&self, weight: WeightId) -> Result<HostSpan, Error> {
        let host = self.weights.span(weight);
        host.ok_or(Error::Program { what: "a promoted weight that is not packed in host memory" })
    }

    /// How a slot is filled: copies where the host's order serves, else through the staging area.
    fn fill(&self, weights: &Streamed, cycle: &mut PartCycle) -> Result<Vec<FillStep>, Error> {
        let mut steps = Vec::new();
        for (weight, place) in weights {
            let host = self.host_span(*weight)?;
            match self.maker.unpacks(&place.shape) {
                true => steps.extend(self.staging.whole((self.maker, self.host_copies), place, &host, cycle)?),
                false => steps.push(FillStep::Copy(place.start, self.host_copies.source(host))),
            }
        }
        Ok(steps)
    }
}

/// Where streamed weights lie.
fn lies(streamed: &Streamed) -> Lies {
    streamed.iter().map(|(_, place)| (place.start, place.room)).collect()
}

/// Weights in a slot.
type Streamed = [(WeightId, GpuWeight)];

/// The ids by which an item's experts are chosen.
pub fn ids(program: &Program, item: usize) -> Option<View> {
    program.ops[ops(program, item)].iter().find_map(|op| match op.kind {
        OpKind::ExpertMatMul { ids, .. } => Some(ids),
        _ => None,
    })
}

/// Experts of an item that a token chooses; 0 for items without.
pub fn chosen(program: &Program, item: usize) -> usize {
    ids(program, item).map_or(0, |ids| ids.cols as usize)
}

/// Whether a round that chooses so many experts, possibly the same ones, should stream those alone. Else nearly all
/// come, and waiting for the router would only delay them.
pub fn is_few(chosen: usize, experts: usize) -> bool {
    (1..experts).contains(&chosen)
}

/// Most tokens of a round of a phase.
pub fn phase_tokens(phase: Phase) -> usize {
    match phase {
        Phase::Decode => 1,
        Phase::Verify { tokens } => tokens as usize,
        Phase::Prefill { ubatch_tokens } => ubatch_tokens as usize,
    }
}
