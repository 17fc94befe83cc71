//! The cost evaluator: how long a round takes under a schedule and a load. Pure, and free of allocation once prepared.
//!
//! The machine that it plays through: the CPU team and the GPU each execute their items in program order; an item
//! starts when its processor is free and its inputs have arrived, from the other processor after the switch cost,
//! which is paid once per producer and destination because the arrival is shared. The copy engine is one queue in the
//! order of the schedule. A transfer starts when the last reader of its slot is done (in this round or, for the first
//! use of a slot, in the round before, so that transfers run ahead into the next round) and, for routed experts, when
//! the router is. A promoted item waits for its transfer. While a DRAM-bound CPU operator and a transfer overlap,
//! both run slower. A round starts when the one before is complete.
//!
//! It keeps no timeline: the planner's `simulate` does, by another algorithm, and a test holds the two together.

mod prepare;

pub use prepare::{EvaluateError, FreedIn, Prepared, Stream};

use crate::costs::{CaseCosts, CostModel, Load};

/// How many rounds count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// One of many equal rounds (decode).
    Steady,
    /// The mean of the first `rounds`, empty slots at the start (a prompt of that many ubatches).
    Cold {
        /// Rounds, ≥ 1.
        rounds: u32,
    },
}

/// Working memory of [`evaluate`]; reuse it to stay free of allocation.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    finish_us: Vec<f64>,
}

/// How long each part of the machine is at work in a round, microseconds: what slows CPU and link down while they share
/// the DRAM is in their times.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Busy {
    /// The CPU team.
    pub cpu_us: f64,
    /// The GPU.
    pub gpu_us: f64,
    /// The copy engine.
    pub link_us: f64,
}

/// What a round of a schedule keeps busy for how long, one of many equal rounds. The same machine as [`evaluate`]'s.
pub fn busy(model: &CostModel, case: &CaseCosts, prepared: &Prepared, load: &Load, scratch: &mut Scratch) -> Busy {
    scratch.finish_us.clear();
    scratch.finish_us.resize(model.item_count(), f64::INFINITY);
    let mut engine = Engine::new(model, case, prepared, load, &mut scratch.finish_us, usize::MAX);
    (0..MAX_STEADY_ROUNDS / 2).for_each(|_| engine.play_round());
    engine.busy = Busy::default();
    (0..MAX_STEADY_ROUNDS / 2).for_each(|_| engine.play_round());
    let Busy { cpu_us, gpu_us, link_us } = engine.busy;
    let each = |us: f64| us / f64::from(MAX_STEADY_ROUNDS / 2);
    Busy { cpu_us: each(cpu_us), gpu_us: each(gpu_us), link_us: each(link_us) }
}

/// Latency of a round in microseconds, gap to the next round included.
///
/// Infinite when the schedule can never complete, which [`Prepared::new`] rules out.
pub fn evaluate(
    model: &CostModel,
    case: &CaseCosts,
    prepared: &Prepared,
    load: &Load,
    horizon: Horizon,
    scratch: &mut Scratch,
) -> f64 {
    let items = model.item_count();
    scratch.finish_us.clear();
    scratch.finish_us.resize(items, f64::INFINITY);
    let rounds = match horizon {
        Horizon::Steady if prepared.streams.is_empty() => 1,
        Horizon::Steady => MAX_STEADY_ROUNDS,
        Horizon::Cold { rounds } => rounds.max(1),
    };
    let copies = match horizon {
        Horizon::Steady => usize::MAX,
        Horizon::Cold { .. } => prepared.streams.len() * rounds as usize,
    };
    let mut engine = Engine::new(model, case, prepared, load, &mut scratch.finish_us, copies);
    match horizon {
        Horizon::Steady => steady(&mut engine, rounds),
        Horizon::Cold { .. } => {
            (0..rounds).for_each(|_| engine.play_round());
            engine.round_start_us / f64::from(rounds)
        }
    }
}

/// Rounds after which a schedule without a fixed point is averaged instead.
const MAX_STEADY_ROUNDS: u32 = 8;

/// Two rounds whose transfers stand within this of each other are taken as equal.
const STEADY_TOLERANCE_US: f64 = 1e-6;

/// Plays rounds until the copy engine enters two rounds in the same state; else the mean of the later half. The first
/// round, which follows no other, counts only when it is the only one.
fn steady(engine: &mut Engine<'_>, rounds: u32) -> f64 {
    let mut entry = None;
    let mut sum_us = 0.0;
    for round in 0..rounds {
        let start_us = engine.round_start_us;
        engine.play_round();
        let duration_us = engine.round_start_us - start_us;
        let exit = engine.copy_state();
        let settled = entry.is_some_and(|(ahead, left_us): (usize, f64)| {
            ahead == exit.0 && (left_us - exit.1).abs() < STEADY_TOLERANCE_US
        });
        if settled || rounds == 1 {
            return duration_us;
        }
        entry = Some(exit);
        if round >= rounds / 2 {
            sum_us += duration_us;
        }
    }
    sum_us / f64::from(rounds - rounds / 2)
}

/// A processor: which item it executes or waits for.
#[derive(Clone, Copy)]
struct Lane {
    /// Item that it runs, or would run next; the item count when it has no more this round.
    item: usize,
    /// Last item of the run that was started together: those that follow with nothing to wait for.
    last: usize,
    /// Work left on `item` in unhindered microseconds; negative = not started.
    left_us: f64,
}

impl Lane {
    /// Idle before an item.
    fn at(item: usize) -> Lane {
        Lane { item, last: item, left_us: -1.0 }
    }

    fn running(&self) -> bool {
        self.left_us >= 0.0
    }
}

/// The state of the played machine. Counters of transfers and readers run over all rounds.
struct Engine<'a> {
    model: &'a CostModel,
    case: &'a CaseCosts,
    prepared: &'a Prepared,
    cpu_us: &'a [f32],
    cpu_factor: f64,
    gpu_factor: f64,
    link_factor: f64,
    /// Extra time per unit of DRAM share while CPU and link overlap.
    cpu_penalty: f64,
    link_penalty: f64,
    finish_us: &'a mut [f64],
    now_us: f64,
    round_start_us: f64,
    round: usize,
    cpu: Lane,
    gpu: Lane,
    copy_left_us: f64,
    copies_done: usize,
    copies_limit: usize,
    readers_done: usize,
    busy: Busy,
    /// Without transfers nothing disturbs the CPU: its ends are known when it starts, as the GPU's always are.
    cpu_runs_ahead: bool,
}

impl<'a> Engine<'a> {
    fn new(
        model: &'a CostModel,
        case: &'a CaseCosts,
        prepared: &'a Prepared,
        load: &Load,
        finish_us: &'a mut [f64],
        copies_limit: usize,
    ) -> Engine<'a> {
        let items = model.item_count();
        let team = &model.teams[prepared.team];
        Engine {
            model,
            case,
            prepared,
            cpu_us: &case.cpu_us[prepared.team * items..(prepared.team + 1) * items],
            cpu_factor: load.cpu_factor(team.threads),
            gpu_factor: load.gpu,
            link_factor: load.link,
            cpu_penalty: f64::from(team.cpu_slowdown_while_link) - 1.0,
            link_penalty: f64::from(team.link_slowdown_while_cpu) - 1.0,
            finish_us,
            now_us: 0.0,
            round_start_us: 0.0,
            round: 0,
            cpu: Lane::at(0),
            gpu: Lane::at(0),
            cpu_runs_ahead: prepared.streams.is_empty(),
            copy_left_us: -1.0,
            copies_done: 0,
            copies_limit,
            readers_done: 0,
            busy: Busy::default(),
        }
    }

    /// Transfers ahead of the round's start, and work left on the running one.
    fn copy_state(&self) -> (usize, f64) {
        (self.copies_done - self.round * self.prepared.streams.len(), self.copy_left_us)
    }

    /// Plays one round; `round_start_us` becomes the start of the next.
    fn play_round(&mut self) {
        let items = self.finish_us.len();
        self.finish_us.fill(f64::INFINITY);
        self.cpu = Lane::at(self.next_on(false, 0));
        self.gpu = Lane::at(self.next_on(true, 0));
        while self.cpu.item < items || self.gpu.item < items {
            if !self.step() {
                self.round_start_us = f64::INFINITY;
                return;
            }
        }
        self.round += 1;
        self.round_start_us = self.now_us + f64::from(self.case.gap_us);
    }

    /// First item at or after `from` that executes on the GPU (or not).
    fn next_on(&self, gpu: bool, from: usize) -> usize {
        let rest = &self.prepared.on_gpu[from..];
        rest.iter().position(|&on_gpu| on_gpu == gpu).map_or(self.prepared.on_gpu.len(), |ahead| from + ahead)
    }

    /// Starts what can start, then moves to the next event. False when nothing can ever happen again.
    fn step(&mut self) -> bool {
        let cpu_ready_us = self.try_start(false);
        let gpu_ready_us = self.try_start(true);
        let copy_ready_us = self.try_start_copy();
        let (cpu_stretch, link_stretch) = self.stretches();
        let ends = |left_us: f64, stretch: f64, ready_us: f64| {
            if left_us >= 0.0 { self.now_us + left_us * stretch } else { ready_us }
        };
        let cpu_at = ends(self.cpu.left_us, cpu_stretch, cpu_ready_us);
        let gpu_at = ends(self.gpu.left_us, 1.0, gpu_ready_us);
        let copy_at = ends(self.copy_left_us, link_stretch, copy_ready_us);
        let at_us = cpu_at.min(gpu_at).min(copy_at);
        if at_us == f64::INFINITY {
            return false;
        }
        let elapsed_us = at_us - self.now_us;
        self.now_us = at_us;
        let while_busy = |is_busy: bool| if is_busy { elapsed_us } else { 0.0 };
        self.busy.cpu_us += while_busy(self.cpu.running());
        self.busy.gpu_us += while_busy(self.gpu.running());
        self.busy.link_us += while_busy(self.copy_left_us >= 0.0);
        if self.copy_left_us >= 0.0 {
            self.copy_left_us = (self.copy_left_us - elapsed_us / link_stretch).max(0.0);
            if copy_at == at_us {
                self.copy_left_us = -1.0;
                self.copies_done += 1;
            }
        }
        self.advance(false, elapsed_us / cpu_stretch, cpu_at == at_us);
        self.advance(true, elapsed_us, gpu_at == at_us);
        true
    }

    /// How much longer CPU work and transfers take right now than alone.
    fn stretches(&self) -> (f64, f64) {
        if self.cpu.running() && self.copy_left_us >= 0.0 {
            let share = f64::from(self.case.items[self.cpu.item].dram_share);
            (1.0 + share * self.cpu_penalty, 1.0 + share * self.link_penalty)
        } else {
            (1.0, 1.0)
        }
    }

    /// Starts the next item of an idle processor if its inputs are there; else says when they will be.
    fn try_start(&mut self, gpu: bool) -> f64 {
        let lane = if gpu { self.gpu } else { self.cpu };
        if lane.running() || lane.item >= self.finish_us.len() {
            return f64::INFINITY;
        }
        let ready_us = self.ready_us(lane.item, gpu);
        if ready_us <= self.now_us {
            self.start(lane.item, gpu);
        }
        ready_us
    }

    fn work_us(&self, item: usize, gpu: bool) -> f64 {
        if gpu {
            f64::from(self.case.items[item].gpu_us) * self.gpu_factor
        } else {
            f64::from(self.cpu_us[item]) * self.cpu_factor
        }
    }

    /// Starts `item` and, where ends are known in advance, the items after it that read only from the same processor.
    fn start(&mut self, item: usize, gpu: bool) {
        let mut left_us = self.work_us(item, gpu);
        let mut last = item;
        if gpu || self.cpu_runs_ahead {
            self.finish_us[item] = self.now_us + left_us;
            let reader = self.next_reader();
            let mut next = self.next_on(gpu, item + 1);
            while (!gpu || reader != Some(last))
                && next < self.finish_us.len()
                && self.follows_freely(next, gpu, reader)
            {
                left_us += self.work_us(next, gpu);
                self.finish_us[next] = self.now_us + left_us;
                last = next;
                next = self.next_on(gpu, next + 1);
            }
        }
        *if gpu { &mut self.gpu } else { &mut self.cpu } = Lane { item, last, left_us };
    }

    /// Whether an item has nothing to wait for but the one before it on its processor.
    fn follows_freely(&self, item: usize, gpu: bool, reader: Option<usize>) -> bool {
        let here = |producer: &crate::ids::ItemId| self.prepared.on_gpu[producer.index()] == gpu;
        !(gpu && reader == Some(item)) && self.model.inputs_of(item).iter().all(here)
    }

    /// When the inputs of `item` have arrived on its processor; infinite while some are not even made.
    fn ready_us(&self, item: usize, gpu: bool) -> f64 {
        if gpu && self.next_reader() == Some(item) && self.copies_done <= self.readers_done {
            return f64::INFINITY;
        }
        let mut ready_us = self.round_start_us;
        for producer in self.model.inputs_of(item) {
            let producer = producer.index();
            let mut arrival_us = self.finish_us[producer];
            if self.prepared.on_gpu[producer] != gpu {
                let cost = &self.case.items[producer];
                let switch_us = if gpu { cost.to_gpu_us } else { cost.to_cpu_us };
                arrival_us += f64::from(switch_us) * self.link_factor;
            }
            ready_us = ready_us.max(arrival_us);
        }
        ready_us
    }

    /// The next promoted item that the GPU will execute in this round.
    fn next_reader(&self) -> Option<usize> {
        let index = self.readers_done - self.round * self.prepared.streams.len();
        self.prepared.streams.get(index).map(|stream| stream.item as usize)
    }

    /// Starts the next transfer if its slot is free and its router known; else says when it will be, if that is known.
    fn try_start_copy(&mut self) -> f64 {
        let streams = &self.prepared.streams;
        if self.copy_left_us >= 0.0 || streams.is_empty() || self.copies_done >= self.copies_limit {
            return f64::INFINITY;
        }
        let (round, index) = (self.copies_done / streams.len(), self.copies_done % streams.len());
        let stream = streams[index];
        let used_in_round = match stream.freed_in {
            FreedIn::SameRound => Some(round),
            FreedIn::PreviousRound => round.checked_sub(1),
        };
        let readers_before = used_in_round.map_or(0, |used| used * streams.len() + stream.freed_by as usize + 1);
        if self.readers_done < readers_before {
            return f64::INFINITY;
        }
        let cost = &self.case.items[stream.item as usize];
        let ready_us = cost.stream_after.map_or(self.now_us, |router| self.routed_us(router.index(), round));
        if ready_us <= self.now_us {
            self.copy_left_us = f64::from(cost.stream_us) * self.link_factor;
        }
        ready_us
    }

    /// When the CPU, which orders transfers, knows what the router of `round` chose.
    fn routed_us(&self, router: usize, round: usize) -> f64 {
        if round != self.round {
            return f64::INFINITY;
        }
        let switch_us = if self.prepared.on_gpu[router] { self.case.items[router].to_cpu_us } else { 0.0 };
        self.finish_us[router] + f64::from(switch_us) * self.link_factor
    }

    /// Takes `done_us` of work from a running item and ends it when `complete`.
    fn advance(&mut self, gpu: bool, done_us: f64, complete: bool) {
        let lane = if gpu { self.gpu } else { self.cpu };
        if !lane.running() {
            return;
        }
        let mut next = Lane { left_us: (lane.left_us - done_us).max(0.0), ..lane };
        if complete {
            if gpu && self.next_reader() == Some(lane.item) {
                self.readers_done += 1;
            }
            self.finish_us[lane.last] = self.now_us;
            next = Lane::at(self.next_on(gpu, lane.last + 1));
        }
        if gpu {
            self.gpu = next;
        } else {
            self.cpu = next;
        }
    }
}
