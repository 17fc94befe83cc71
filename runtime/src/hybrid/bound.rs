//! Scripts bound to a GPU: every command with the operators that carry it out, made once at load. Schedules that run the
//! same items in the same place share them. Not here: when they are queued (`driver.rs`). Next: `sim.rs`.

use super::crossings::{Crossing, ItemAccess, Side, ops};
use super::memory::{GpuMemory, matrix_bytes};
use super::ops::{Arrival, GpuWeight, Move, OpEnv, OpMaker, Sizes};
use super::script::{Command, Scene, Script};
use crate::Error;
use crate::exec::WeightStore;
use device::clock::Nanos;
use device::gpu::{CopySource, DevicePtr, GpuOp, HostSpan, Launch, LaunchArgs, MappedRegion};
use device::timeline::FillStep;
use kernels::quant::packed_bytes;
use plan_format::WeightId;
use plan_format::arena::Arena;
use plan_format::program::{Program, WeightRole};
use plan_format::schedule::{Home, Layout, Placement, Schedule, Slots};
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
    /// The host's arena as the GPU reaches it.
    pub host_arena: MappedRegion,
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
    /// By promotion.
    pub fills: Vec<Vec<FillStep>>,
    /// Slot of each promotion.
    pub slots: Vec<usize>,
    /// Item of each promotion.
    pub items: Vec<u32>,
}

/// Operators made so far.
#[derive(Default)]
pub struct Made {
    runs: HashMap<(Range<usize>, Option<u32>), Operators>,
    moves: Vec<(Side, Vec<Crossing>, Operators)>,
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
        let scene = Scene { program, access, arena, on_gpu: &on_gpu, promotions: &schedule.promotions, slots };
        let script = Script::new(scene);
        let streamed =
            schedule.promotions.iter().map(|promotion| self.streamed(promotion.item.index(), promotion.slot));
        let streamed = streamed.collect::<Result<Vec<_>, Error>>()?;
        let operators = script.commands.iter().map(|command| {
            Ok(match command {
                Command::Run(items, promotion) => {
                    let slot = promotion.map(|index| schedule.promotions[index].slot.0);
                    let weights = promotion.map_or(&[][..], |index| &streamed[index]);
                    self.run(items.clone(), slot, weights, made)?
                }
                Command::Move(side, crossings) => self.mover(*side, crossings, made)?,
                _ => Operators::default(),
            })
        });
        let operators = operators.collect::<Result<Vec<_>, Error>>()?;
        let fills = schedule.promotions.iter().zip(&streamed).map(|(_, weights)| self.fill(weights));
        let fills = fills.collect::<Result<Vec<_>, Error>>()?;
        let slots = schedule.promotions.iter().map(|promotion| promotion.slot.index()).collect();
        let items = schedule.promotions.iter().map(|promotion| promotion.item.0).collect();
        Ok(Bound { script, operators, fills, slots, items })
    }

    fn run(
        &self,
        items: Range<usize>,
        slot: Option<u32>,
        streamed: &[(WeightId, GpuWeight)],
        made: &mut Made,
    ) -> Result<Operators, Error> {
        let key = (items.clone(), slot);
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

    /// Where the weights of a promoted item lie in a slot. Errors: they do not fit.
    fn streamed(&self, item: usize, slot: plan_format::SlotId) -> Result<Vec<(WeightId, GpuWeight)>, Error> {
        let slot = self.slots.slots[slot.index()];
        let mut end = 0;
        let mut list = Vec::new();
        for &weight in &self.program.items[item].weights {
            if self.program.weights[weight.index()].role == WeightRole::Small {
                continue;
            }
            let shape = self.weights.shape(weight);
            let layout = self.maker.slot_layout(&shape);
            let stride_bytes = matrix_bytes(&shape, layout)?;
            let start = self.memory.slots.start.offset(slot.offset_bytes + end);
            list.push((weight, GpuWeight { shape, layout, start, stride_bytes, places: None }));
            end = (end + stride_bytes * shape.stack as u64).next_multiple_of(256);
        }
        let size_bytes = slot.size_bytes;
        if end > size_bytes.next_multiple_of(256) {
            let item = self.program.items[item].name.clone();
            return Err(Error::SlotTooSmall { item, needed_bytes: end, slot_bytes: size_bytes });
        }
        Ok(list)
    }

    /// How a slot is filled: copies where the host's order serves, else through the staging area.
    fn fill(&self, weights: &[(WeightId, GpuWeight)]) -> Result<Vec<FillStep>, Error> {
        let mut steps = Vec::new();
        for (weight, place) in weights {
            let host = self.weights.span(*weight);
            let host = host.ok_or(Error::Program { what: "a promoted weight that is not packed in host memory" })?;
            if place.layout == Layout::CpuPanel16 {
                steps.push(FillStep::Copy(place.start, CopySource::Span(host)));
            } else {
                self.unpack(&host, place, &mut steps)?;
            }
        }
        Ok(steps)
    }

    fn unpack(&self, host: &HostSpan, place: &GpuWeight, steps: &mut Vec<FillStep>) -> Result<(), Error> {
        let staging = self.slots.staging().ok_or(Error::Program { what: "promotions without slots" })?;
        let from = self.memory.slots.start.offset(staging.offset_bytes);
        let panel_bytes = packed_bytes(place.shape.ty, 1, place.shape.cols)?;
        let panels_at_once = (staging.size_bytes as usize / panel_bytes).max(1);
        let host_stride = matrix_bytes(&place.shape, Layout::CpuPanel16)? as usize;
        let panels = place.shape.rows.div_ceil(16);
        for slice in 0..place.shape.stack {
            for first in (0..panels).step_by(panels_at_once) {
                let last = panels.min(first + panels_at_once);
                let start = host.range.start + slice * host_stride;
                let range = start + first * panel_bytes..start + last * panel_bytes;
                let source = CopySource::Span(HostSpan { region: Arc::clone(&host.region), range });
                steps.push(FillStep::Copy(from, source));
                let rows = (first as u32 * 16, (last * 16).min(place.shape.rows) as u32);
                let to: DevicePtr = place.start.offset(slice as u64 * place.stride_bytes);
                let op = self.maker.unpack(&Arrival { shape: place.shape, rows, from, to })?;
                steps.push(FillStep::Launch(Launch { op, args: LaunchArgs::default(), expected: Nanos(0) }));
            }
        }
        Ok(())
    }
}
