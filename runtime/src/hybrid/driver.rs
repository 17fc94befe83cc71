//! Worker 0's side of a round: queues the script's commands ahead of the CPU parts, hands over between the processors,
//! and keeps transfers going into the next round. All ordering is the [`Timeline`]'s.
//!
//! Invariants: a round allocates nothing; when it has ended, the compute stream is empty, and only transfers for the
//! next round may be under way; after a failed round everything is empty. Not here: the CPU's work (`exec/run.rs`),
//! what the commands are (`script.rs`). Next: `driver/queue.rs`.

mod queue;

use super::adapt::{Resource, Sample};
use super::bound::Bound;
use super::crossings::Side;
use super::fills::Fills;
use super::held::Held;
use super::inputs::Inputs;
use super::marks::{Mark, Marks, Timing};
use super::ops::RoundArgs;
use super::probe::Probe;
use super::script::{Command, CpuPart, Touch};
use crate::Error;
use crate::exec::Round;
use crate::exec::shared::Shared;
use crate::exec::trace::{Label, Trace};
use device::clock::Nanos;
use device::gpu::{Access, DevicePtr, Gpu, GpuOp, Launch};
use device::timeline::{CpuTicket, GpuTicket, SlotIndex, Timeline};
use device::trace::Track;
use plan_format::costs::CaseCosts;
use plan_format::program::{Program, Rows};
use queue::Limits;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A round's numbers for the driver.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    /// Which schedule, by number.
    pub schedule: usize,
    /// Tokens and outputs.
    pub args: RoundArgs,
    /// Expected times; `None` = the plan has none.
    pub case: Option<&'a CaseCosts>,
    /// CPU times of the team that runs, by item.
    pub cpu_us: &'a [f32],
    /// Where what happens is written down.
    pub trace: &'a Trace,
}

/// Where a value lies in the host's arena.
#[derive(Clone, Copy, Debug)]
struct HostValue {
    start: DevicePtr,
    rows: Rows,
    row_bytes: u64,
}

/// See the module text.
pub struct Driver {
    gpu: Arc<dyn Gpu>,
    timeline: Timeline,
    bound: Vec<Bound>,
    fills: Fills,
    /// Copies the round's inputs.
    copier: Arc<dyn GpuOp>,
    held: Held,
    inputs: Inputs,
    values: Vec<HostValue>,
    host_arena: Shared,
    /// Part of a switch's expected time that the hand-over itself takes.
    hand_over: HandOver,
    /// Schedule whose first transfers of the next round are queued.
    ahead: Option<usize>,
    /// Schedule of the round before.
    last: Option<usize>,
    /// What the last switch to another schedule took.
    switch_took: Nanos,
    marks: Marks,
    /// What this round took.
    sample: Sample,
    /// When the CPU part under way began.
    part_start: Nanos,
    /// The smallest transfer that can be made at any time: to sense a link that the schedule leaves idle.
    probe: Option<Probe>,
    idle_rounds: u32,
    /// Whether work that comes again is recorded.
    records: bool,
    /// Commands queued in this round.
    queued: usize,
    /// Transfers queued in this round, but for the one that is open.
    fills_queued: usize,
    /// Events of the transfer that is open, and its promotion.
    filling: Option<(Mark, usize)>,
    waits: VecDeque<(usize, CpuTicket)>,
    signals: VecDeque<(usize, GpuTicket)>,
    /// Signals of this round that have come.
    seen: usize,
    parts_done: usize,
}

/// Rounds without transfers after which one is made to sense the link.
const PROBED_ONE_IN: u32 = 16;

/// Times that a simulated GPU adds to each hand-over by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HandOver {
    /// CPU to GPU.
    pub to_gpu_us: f32,
    /// GPU to CPU.
    pub to_cpu_us: f32,
}

/// What a driver is made of.
pub struct Parts {
    /// The GPU's streams and rules.
    pub timeline: Timeline,
    /// Schedules.
    pub bound: Vec<Bound>,
    /// Fills that they share.
    pub fills: Fills,
    /// Copies the round's inputs, before anything else.
    pub copier: Arc<dyn GpuOp>,
    /// Held items.
    pub held: Held,
    /// The round's inputs.
    pub inputs: Inputs,
    /// The host's arena as the GPU sees it.
    pub host_arena: DevicePtr,
    /// The same as the CPU does.
    pub values: Shared,
    /// See [`HandOver`].
    pub hand_over: HandOver,
}

impl Driver {
    /// A driver between rounds.
    pub fn new(parts: Parts, program: &Program, offsets_bytes: &[u64]) -> Self {
        let Parts { timeline, bound, fills, copier, held, inputs, host_arena, values: memory, hand_over } = parts;
        let value = |(value, &offset): (&plan_format::program::Value, &u64)| HostValue {
            start: host_arena.offset(offset),
            rows: value.rows,
            row_bytes: u64::from(value.cols) * 4,
        };
        let values = program.values.iter().zip(offsets_bytes).map(value).collect();
        let most = |of: fn(&Command) -> bool| {
            bound.iter().map(|bound| bound.script.commands.iter().filter(|command| of(command)).count()).max()
        };
        let probe = Probe::smallest((&bound, &held), &fills, program);
        let waits = most(|command| matches!(command, Command::WaitCpu(_))).unwrap_or(0);
        let signals = most(|command| matches!(command, Command::Signal(_))).unwrap_or(0);
        Self {
            gpu: Arc::clone(timeline.gpu()),
            timeline,
            bound,
            fills,
            copier,
            held,
            inputs,
            values,
            host_arena: memory,
            hand_over,
            ahead: None,
            last: None,
            switch_took: Nanos(0),
            marks: Marks::default(),
            sample: Sample::default(),
            part_start: Nanos(0),
            probe,
            idle_rounds: 0,
            records: true,
            queued: 0,
            fills_queued: 0,
            filling: None,
            waits: VecDeque::with_capacity(waits),
            signals: VecDeque::with_capacity(signals),
            seen: 0,
            parts_done: 0,
        }
    }

    /// Schedule of the last round.
    pub fn schedule(&self) -> usize {
        self.last.unwrap_or(0)
    }

    /// What the last switch to another schedule took, from the round's start to its first operator.
    pub fn switch_took(&self) -> Nanos {
        self.switch_took
    }

    /// Parts of the CPU team in a schedule.
    pub fn parts(&self, schedule: usize) -> &[CpuPart] {
        &self.bound[schedule].script.parts
    }

    /// Begins a round: inputs, first transfers that nobody has queued. Errors: the GPU is lost.
    pub fn begin(&mut self, turn: &Turn, round: &Round) -> Result<(), Error> {
        (self.queued, self.fills_queued, self.parts_done, self.seen) = (0, 0, 0, 0);
        let start = turn.trace.now();
        let outcome = self.enter(turn, round);
        if self.last.replace(turn.schedule).is_some_and(|last| last != turn.schedule) {
            let (label, end) = (Label::Switch(turn.schedule as u32), turn.trace.now());
            turn.trace.other(Track::Control, 0, label, (start, end));
            self.switch_took = end.since(start);
        }
        outcome
    }

    fn enter(&mut self, turn: &Turn, round: &Round) -> Result<(), Error> {
        if !self.bound[turn.schedule].script.uses_gpu() {
            return Ok(());
        }
        self.inputs.write(&*self.gpu, round)?;
        self.marks.begin(&*self.gpu, self.timeline.compute_stream(), turn.trace.now())?;
        if self.ahead != Some(turn.schedule) {
            self.forget_ahead()?;
            for number in self.held.enter(&mut self.timeline, self.bound[turn.schedule].rounds)? {
                self.hold(turn, number)?;
            }
            for index in 0..self.bound[turn.schedule].script.ahead.len() {
                self.fill(turn, self.bound[turn.schedule].script.ahead[index])?;
            }
        }
        self.ahead = None;
        let prologue = Arc::clone(&self.bound[turn.schedule].prologue);
        for op in std::iter::once(&self.copier).chain(prologue.iter()) {
            let launch = Launch { op: Arc::clone(op), args: turn.args.into(), expected: Nanos(0) };
            self.timeline.launch(&launch)?;
        }
        Ok(())
    }

    /// Discards transfers that were queued for another schedule.
    fn forget_ahead(&mut self) -> Result<(), Error> {
        let Some(schedule) = self.ahead.take() else { return Ok(()) };
        for index in 0..self.bound[schedule].script.ahead.len() {
            let promotion = self.bound[schedule].script.ahead[index];
            self.timeline.discard(SlotIndex(self.bound[schedule].slots[promotion]))?;
        }
        Ok(())
    }

    /// Brings a held item.
    fn hold(&mut self, turn: &Turn, number: usize) -> Result<(), Error> {
        let mark = self.marks.take(&*self.gpu)?;
        let item = self.held.bring(&mut self.timeline, number, mark.map(|mark| mark.begin))?;
        if let Some(mark) = mark {
            self.gpu.record(self.timeline.transfer_stream(), mark.end)?;
            let expected_us = turn.case.and_then(|case| case.items.get(item)).map_or(0.0, |item| item.stream_us);
            let what = (Track::Transfer, 0, Label::Hold(item as u32));
            self.marks.queued(mark, what, f64::from(expected_us));
        }
        Ok(())
    }

    /// Turns the timing of GPU work on or off.
    pub fn time(&mut self, timing: Timing) {
        self.marks.set(timing);
    }

    /// Nothing more is recorded: what is not yet runs step by step.
    pub fn record_no_more(&mut self) {
        self.records = false;
    }

    /// All GPU work of the next rounds is timed.
    pub fn time_next(&mut self, rounds: u32) {
        self.marks.time_next(rounds);
    }

    /// Before CPU part `part`: queues what belongs before it, waits for what the part needs, and meanwhile queues what
    /// else it may. Errors: the GPU is lost or silent.
    pub fn before_part(&mut self, turn: &Turn, part: usize) -> Result<(), Error> {
        let (script, limits) = (&self.bound[turn.schedule].script, self.limits(turn, part));
        let (needed, signal) = (script.needed[part], script.parts[part].needs);
        self.queue(turn, Limits { commands: needed, ..limits })?;
        if let Some(signal) = signal {
            self.wait_busily(turn, signal, limits)?;
        }
        self.gpu.host_delay();
        self.part_start = turn.trace.now();
        self.declare(turn, part)
    }

    /// While CPU part `part` runs on the other workers: queues the rest of what belongs beside it.
    /// Errors: the GPU is lost or silent.
    pub fn beside_part(&mut self, turn: &Turn, part: usize) -> Result<(), Error> {
        self.queue_beside(turn, part, self.limits(turn, part))
    }

    /// Tells a simulated GPU what the part touches.
    fn declare(&self, turn: &Turn, part: usize) -> Result<(), Error> {
        for &(value, touch) in &self.bound[turn.schedule].script.parts[part].touches {
            let HostValue { start, rows, row_bytes } = self.values[value.index()];
            let access = if touch == Touch::Write { Access::Write } else { Access::Read };
            self.gpu.host_touches(start, u64::from(turn.args.rows(rows)) * row_bytes, access)?;
        }
        Ok(())
    }

    /// After CPU part `part`, all of whose writes are made. Errors: the GPU is lost.
    pub fn after_part(&mut self, turn: &Turn, part: usize) -> Result<(), Error> {
        if !turn.trace.sees_steps() {
            self.simulate(turn, part);
        }
        let items = self.bound[turn.schedule].script.parts[part].items.clone();
        let expected_us: f32 = turn.cpu_us.get(items).map_or(0.0, |times| times.iter().sum());
        let measured_us = turn.trace.now().since(self.part_start).as_micros_f64();
        self.sample.add(Resource::Cpu, measured_us, f64::from(expected_us));
        self.parts_done = part + 1;
        while self.waits.front().is_some_and(|(waits_for, _)| *waits_for <= part) {
            if let Some((_, ticket)) = self.waits.pop_front() {
                self.timeline.cpu_done(ticket)?;
            }
        }
        Ok(())
    }

    /// Times a transfer that nobody needs, now and then, while the schedule leaves the link idle.
    fn probe(&mut self, turn: &Turn) -> Result<(), Error> {
        let is_idle = self.bound[turn.schedule].fills.is_empty();
        self.idle_rounds = if is_idle { self.idle_rounds + 1 } else { 0 };
        let is_due = self.idle_rounds >= PROBED_ONE_IN || self.marks.is_hasty();
        let Some(probe) = self.probe.filter(|_| is_idle && is_due) else { return Ok(()) };
        if !self.marks.is_timed() || self.ahead.is_some_and(|ahead| !self.bound[ahead].fills.is_empty()) {
            return Ok(());
        }
        self.idle_rounds = 0;
        let Probe { schedule, promotion } = probe;
        self.fill(&Turn { schedule, ..*turn }, promotion)?;
        Ok(self.timeline.discard(SlotIndex(self.bound[schedule].slots[promotion]))?)
    }

    /// What the round took; forgotten here.
    pub fn take_sample(&mut self) -> Sample {
        std::mem::take(&mut self.sample)
    }

    /// The simulated machine's CPU works through the part's items.
    fn simulate(&self, turn: &Turn, part: usize) {
        for item in self.bound[turn.schedule].script.parts[part].items.clone() {
            let start = turn.trace.now();
            let worked_us = turn.cpu_us.get(item).copied().unwrap_or(0.0);
            self.gpu.host_worked(Nanos::from_micros_f64(f64::from(worked_us)));
            turn.trace.worker(0, part, Label::Items(item as u32), start);
        }
    }

    /// Ends a round: the rest is queued, the compute stream comes to its end. Errors: the GPU is lost or silent.
    pub fn finish(&mut self, turn: &Turn) -> Result<(), Error> {
        let script = &self.bound[turn.schedule].script;
        let limits = Limits { commands: script.commands.len(), fills: script.fills.len() };
        self.queue(turn, limits)?;
        if let Some(last) = self.signals.back().map(|(last, _)| *last) {
            self.wait_busily(turn, last, limits)?;
        }
        self.queue_fills(turn, limits.fills)?;
        self.settle(turn.schedule)?;
        if limits.commands > 0 {
            self.ahead = Some(turn.schedule);
        }
        let gap_us = turn.case.map_or(0.0, |case| case.gap_us);
        self.gpu.host_worked(Nanos::from_micros_f64(f64::from(gap_us)));
        self.probe(turn)?;
        self.marks.collect(&*self.gpu, turn.trace, &mut self.sample)
    }

    /// Operators do what they must not do while a stream waits for the host.
    fn settle(&mut self, schedule: usize) -> Result<(), Error> {
        if !self.records {
            return Ok(());
        }
        let operators = self.bound[schedule].operators.iter().flat_map(|operators| operators.iter());
        let first = std::iter::once(&self.copier).chain(self.bound[schedule].prologue.iter());
        for op in operators.chain(first).filter(|op| op.is_unsettled()) {
            self.timeline.settle(&**op)?;
        }
        self.fills.record(&mut self.timeline, &self.bound[schedule].fills)
    }

    /// Ends a round that failed. Errors: the GPU is lost.
    pub fn abandon(&mut self) -> Result<(), Error> {
        self.ahead = None;
        self.held.forget();
        self.fills.forget();
        self.filling = None;
        self.waits.clear();
        self.signals.clear();
        Ok(self.timeline.abandon()?)
    }
}

/// Expected time of items on the GPU.
fn gpu_us(case: Option<&CaseCosts>, items: Range<usize>) -> f32 {
    case.and_then(|case| case.items.get(items)).map_or(0.0, |items| items.iter().map(|item| item.gpu_us).sum())
}

impl HandOver {
    /// What is left of a switch's expected time for the mover.
    fn rest_us(&self, case: Option<&CaseCosts>, side: Side, producers: impl Iterator<Item = usize>) -> f32 {
        let times = producers.filter_map(|item| case?.items.get(item));
        match side {
            Side::Gpu => times.map(|item| item.to_gpu_us - self.to_gpu_us).fold(0.0, f32::max),
            Side::Host => times.map(|item| item.to_cpu_us - self.to_cpu_us).fold(0.0, f32::max),
        }
    }
}
