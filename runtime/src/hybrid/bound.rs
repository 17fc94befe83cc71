//! Scripts bound to a GPU: every command with the operators that carry it out, made once at load. Schedules that run
//! the same items in the same place share them. Not here: when they are queued (`driver.rs`). Next: `sim.rs`.

use super::crossings::{Crossing, ItemAccess, Side, ops};
use super::fills::{Fill, FillKind};
use super::memory::{GpuMemory, Room, matrix_bytes};
use super::ops::{GpuWeight, Move, OpEnv, OpMaker, Sizes};
use super::routed::{RoutedFill, RoutedStack};
use super::script::{Command, Scene, Script};
use super::staging::{HostCopies, PartCycle, StagingArea};
use crate::Error;
use crate::exec::WeightStore;
use crate::exec::choices::ChoiceMemory;
use crate::exec::shared::Place;
use device::gpu::{DevicePtr, GpuOp, HostSpan, MappedRegion};
use device::timeline::FillStep;
use plan_format::WeightId;
use plan_format::arena::Arena;
use plan_format::operands::Columns;
use plan_format::program::{OpKind, Program, View, WeightRole};
use plan_format::schedule::{Layout, Phase, Placement, Promotion, Schedule, Slots};
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
    /// The arena of rounds of few tokens, if those hold items.
    pub few_arena: Option<&'a Arena>,
    /// Where pieces of streamed weights arrive.
    pub staging: StagingArea,
    /// The host's arena as the GPU reaches it.
    pub host_arena: MappedRegion,
    /// Whether the copy engine reads host weights as they lie.
    pub host_copies: HostCopies,
    /// Tables of streamed experts in mapped memory, with their offsets by item.
    pub tables: (Option<MappedRegion>, &'a [Option<u64>]),
    /// Where choices of experts are recorded, if they are.
    pub choices: Option<&'a ChoiceMemory>,
    /// Who makes operators.
    pub maker: &'a dyn OpMaker,
}

/// Operators of one command.
pub type Operators = Arc<Vec<Arc<dyn GpuOp>>>;

/// Rounds by what they work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounds {
    /// What there is for rounds of all sizes.
    All,
    /// What rounds of few tokens leave of it to held items.
    Few,
}

/// An item that is held between prompts.
pub struct HeldItem {
    /// Number in the program.
    pub item: usize,
    /// What brings its weights.
    pub steps: Vec<FillStep>,
}

/// A schedule ready to run.
pub struct Bound {
    /// What its rounds work in.
    pub rounds: Rounds,
    /// First operators of a round.
    pub prologue: Operators,
    /// By command: held items that it reads, by number.
    pub reads: Vec<Range<usize>>,
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
    runs: HashMap<(Rounds, Range<usize>, Lies), Operators>,
    moves: Vec<(Rounds, Side, Vec<Crossing>, Operators)>,
    prologues: HashMap<Rounds, Operators>,
    /// Items that are held, in item order.
    pub held: Vec<HeldItem>,
    /// Their weights.
    held_weights: Vec<(WeightId, GpuWeight)>,
    fills: HashMap<(usize, bool, Lies), usize>,
    /// Fills that schedules share.
    pub distinct: Vec<Fill>,
}

impl<'a> Binder<'a> {
    /// Items that a schedule executes on the GPU.
    pub fn on_gpu(placement: &Placement, schedule: &Schedule) -> Vec<bool> {
        let mut on_gpu = placement.on_gpu(schedule.phase);
        for promotion in &schedule.promotions {
            on_gpu[promotion.item.index()] = true;
        }
        on_gpu
    }

    /// What rounds of a phase work in.
    fn rounds(&self, phase: Phase) -> Rounds {
        if self.few_arena.is_some() && !phase.is_prefill() { Rounds::Few } else { Rounds::All }
    }

    fn room(&self, rounds: Rounds) -> &'a Room {
        let few = self.memory.few.as_ref().filter(|_| rounds == Rounds::Few);
        few.unwrap_or(&self.memory.all)
    }

    /// What makers see.
    fn env<'b>(&'b self, rounds: Rounds, held: &'b Streamed, streamed: &'b Streamed) -> OpEnv<'b> {
        let room = self.room(rounds);
        OpEnv {
            program: self.program,
            sizes: Sizes { limits: room.arena.limits, ..self.sizes },
            inputs: self.memory.map.inputs,
            scratch: room.scratch,
            map: &self.memory.map,
            room,
            held: if rounds == Rounds::Few { held } else { &[] },
            streamed,
            choices: self.choices,
        }
    }

    /// The held items. Errors: a weight that is not packed, an item that does not fit its place.
    pub fn hold(&self, made: &mut Made) -> Result<(), Error> {
        for held in &self.placement.held.items {
            let item = held.item.index();
            let (weights, needed_bytes) = self.placed(item, self.memory.temporary.offset(held.offset_bytes), None)?;
            if needed_bytes > held.size_bytes.next_multiple_of(256) {
                let item = self.program.items[item].name.clone();
                return Err(Error::SlotTooSmall { item, needed_bytes, slot_bytes: held.size_bytes });
            }
            let steps = self.fill(&weights, &mut self.staging.cycle())?;
            made.held_weights.extend(&weights);
            made.held.push(HeldItem { item, steps });
        }
        Ok(())
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
        let rounds = self.rounds(schedule.phase);
        let prologue = if script.uses_gpu() { self.prologue(rounds, made)? } else { Operators::default() };
        let reads = script.commands.iter().map(|command| match command {
            Command::Run(items, None) if rounds == Rounds::Few => made.held_in(items),
            _ => 0..0,
        });
        let reads = reads.collect();
        let operators = script.commands.iter().map(|command| {
            Ok(match command {
                Command::Run(items, promotion) => {
                    let weights = promotion.map_or(&[][..], |index| &streamed[index]);
                    self.run((rounds, items.clone()), weights, made)?
                }
                Command::Move(side, crossings) => self.mover((rounds, *side), crossings, made)?,
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
        Ok(Bound { rounds, prologue, reads, script, operators, fills, slots, items })
    }

    /// First operators of rounds.
    fn prologue(&self, rounds: Rounds, made: &mut Made) -> Result<Operators, Error> {
        if let Some(known) = made.prologues.get(&rounds) {
            return Ok(Arc::clone(known));
        }
        let operators: Operators = Arc::new(self.maker.prologue(&self.env(rounds, &[], &[]))?);
        made.prologues.insert(rounds, Arc::clone(&operators));
        Ok(operators)
    }

    fn run(
        &self,
        (rounds, items): (Rounds, Range<usize>),
        streamed: &Streamed,
        made: &mut Made,
    ) -> Result<Operators, Error> {
        let key = (rounds, items.clone(), lies(streamed));
        if let Some(known) = made.runs.get(&key) {
            return Ok(Arc::clone(known));
        }
        let range = ops(self.program, items.start).start..ops(self.program, items.end - 1).end;
        let operators: Operators = Arc::new(self.maker.run(range, &self.env(rounds, &made.held_weights, streamed))?);
        made.runs.insert(key, Arc::clone(&operators));
        Ok(operators)
    }

    fn mover(
        &self,
        (rounds, side): (Rounds, Side),
        crossings: &[Crossing],
        made: &mut Made,
    ) -> Result<Operators, Error> {
        let known = made.moves.iter().find(|(of, to, list, _)| (*of, *to) == (rounds, side) && list == crossings);
        if let Some((.., known)) = known {
            return Ok(Arc::clone(known));
        }
        let moves: Vec<Move> = crossings.iter().map(|crossing| self.movement(rounds, side, crossing)).collect();
        let operators: Operators = Arc::new(vec![self.maker.mover(&moves)?]);
        made.moves.push((rounds, side, crossings.to_vec(), Arc::clone(&operators)));
        Ok(operators)
    }

    fn movement(&self, rounds: Rounds, side: Side, crossing: &Crossing) -> Move {
        let columns = crossing.columns;
        let value = &self.program.values[columns.value.index()];
        let first_bytes = u64::from(columns.first_col) * 4;
        let host = self.host_arena.device.offset(self.arena.offsets_bytes[columns.value.index()] + first_bytes);
        let gpu = self.room(rounds).value(columns.value).offset(first_bytes);
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
        let start = self.memory.slots.start.offset(slot.offset_bytes);
        let (whole, whole_bytes) = self.placed(item, start, None)?;
        let chosen = chosen(self.program, item) * tokens;
        let experts = whole.iter().map(|(_, place)| place.shape.stack).max().unwrap_or(0);
        if whole_bytes <= slot_bytes && !is_few(chosen, experts) {
            return Ok(whole);
        }
        let (routed, routed_bytes) = self.placed(item, start, Some(chosen))?;
        if chosen > 0 && routed_bytes <= slot_bytes && self.table(item).is_some() {
            return Ok(routed);
        }
        let item = self.program.items[item].name.clone();
        Err(Error::SlotTooSmall { item, needed_bytes: whole_bytes.min(routed_bytes), slot_bytes: slot.size_bytes })
    }

    /// The weights of an item one after the other from `start` on, and where they end. With `experts`, stacks have
    /// room for so many.
    fn placed(
        &self,
        item: usize,
        start: DevicePtr,
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
            let start = start.offset(end);
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

impl Made {
    /// Numbers of the held items among these.
    fn held_in(&self, items: &Range<usize>) -> Range<usize> {
        let before = |item: usize| self.held.partition_point(|held| held.item < item);
        before(items.start)..before(items.end)
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
    phase.tokens() as usize
}
