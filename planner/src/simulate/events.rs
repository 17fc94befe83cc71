//! The event loop of the simulator.
//!
//! Lanes work on jobs whose speed changes when CPU and link meet in DRAM; each change re-schedules the ends, and an
//! end that was overtaken is recognised by its generation. Written for clarity and traces, not speed: searches use
//! `plan_format::evaluate`.

use super::timeline::{Lane, Span, Timeline};
use plan_format::costs::{CaseCosts, CostModel, Load};
use plan_format::schedule::{Placement, Schedule, Slots};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Times.
    pub model: &'a CostModel,
    /// The kind of round.
    pub case: &'a CaseCosts,
    /// Where items live.
    pub placement: &'a Placement,
    /// Temporary GPU memory.
    pub slots: &'a Slots,
    /// What is streamed.
    pub schedule: &'a Schedule,
    /// How busy the machine is.
    pub load: Load,
    /// Rounds to play, from empty slots.
    pub rounds: u32,
    /// Whether transfers for a round after the last may start.
    pub after_last: AfterLast,
}

/// What the copy engine does when the last round's transfers are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLast {
    /// Nothing.
    Stop,
    /// The next round's transfers, as in the middle of an endless loop.
    Continue,
}

/// Plays the rounds. `None` when the schedule is not valid for the model (see `plan_format::evaluate`) or cannot
/// complete.
pub fn simulate(run: &Run<'_>) -> Option<Timeline> {
    let prepared = plan_format::evaluate::Prepared::new(run.model, run.case, run.placement, run.slots, run.schedule);
    let team = prepared.ok()?.team;
    let mut machine = Machine::new(run, team);
    machine.timeline.round_starts_us.push(0.0);
    machine.begin_round();
    while machine.round < run.rounds {
        let event = machine.events.pop()?;
        machine.handle(event);
        machine.dispatch();
    }
    let mut timeline = machine.timeline;
    timeline.spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.lane.cmp(&b.lane)));
    Some(timeline)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// A lane's job ends, unless its generation is past.
    End(Lane, u64),
    /// Something may have become ready.
    Wake,
    /// The next round begins.
    RoundStart,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Event {
    at_us: f64,
    order: u64,
    what: What,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// Reversed: the heap's greatest is the earliest, first-come among equals.
    fn cmp(&self, other: &Event) -> Ordering {
        other.at_us.total_cmp(&self.at_us).then(other.order.cmp(&self.order))
    }
}

/// A job on a lane.
#[derive(Clone, Copy, Debug)]
struct Job {
    item: usize,
    round: u32,
    started_us: f64,
    /// Work left at `since_us`, in unhindered microseconds.
    left_us: f64,
    since_us: f64,
    stretch: f64,
}

/// A transfer in the copy queue.
#[derive(Clone, Copy, Debug)]
struct Copy {
    promotion: usize,
    round: u32,
}

struct Machine<'a> {
    run: &'a Run<'a>,
    team: usize,
    on_gpu: Vec<bool>,
    promotion_of: Vec<Option<usize>>,
    now_us: f64,
    round: u32,
    started: bool,
    events: BinaryHeap<Event>,
    event_count: u64,
    /// CPU, GPU, link.
    jobs: [Option<Job>; 3],
    generations: [u64; 3],
    /// Items still to start this round, per processor.
    queues: [VecDeque<usize>; 2],
    /// When each item's output is on the CPU and on the GPU; `None` until made.
    available_us: Vec<Option<[f64; 2]>>,
    copies: VecDeque<Copy>,
    /// Per promotion: the next round whose transfer has not arrived.
    arrived: Vec<u32>,
    /// Per promotion: rounds whose reader is done.
    read: Vec<u32>,
    timeline: Timeline,
}

const CPU: usize = 0;
const GPU: usize = 1;
const LINK: usize = 2;
const LANES: [Lane; 3] = [Lane::Cpu, Lane::Gpu, Lane::Link];

impl<'a> Machine<'a> {
    fn new(run: &'a Run<'a>, team: usize) -> Machine<'a> {
        let items = run.model.item_count();
        let mut on_gpu = run.placement.on_gpu(run.schedule.phase);
        let mut promotion_of = vec![None; items];
        for (index, promotion) in run.schedule.promotions.iter().enumerate() {
            on_gpu[promotion.item.index()] = true;
            promotion_of[promotion.item.index()] = Some(index);
        }
        let promotions = run.schedule.promotions.len();
        Machine {
            run,
            team,
            on_gpu,
            promotion_of,
            now_us: 0.0,
            round: 0,
            started: false,
            events: BinaryHeap::new(),
            event_count: 0,
            jobs: [None; 3],
            generations: [0; 3],
            queues: [VecDeque::new(), VecDeque::new()],
            available_us: vec![None; items],
            copies: (0..promotions).map(|promotion| Copy { promotion, round: 0 }).collect(),
            arrived: vec![0; promotions],
            read: vec![0; promotions],
            timeline: Timeline::default(),
        }
    }

    fn at(&mut self, at_us: f64, what: What) {
        self.event_count += 1;
        self.events.push(Event { at_us, order: self.event_count, what });
    }

    fn begin_round(&mut self) {
        self.started = true;
        for item in 0..self.on_gpu.len() {
            self.queues[usize::from(self.on_gpu[item])].push_back(item);
        }
        let more = self.round + 1 < self.run.rounds || self.run.after_last == AfterLast::Continue;
        if more {
            let round = self.round + 1;
            self.copies.extend((0..self.arrived.len()).map(|promotion| Copy { promotion, round }));
        }
        self.dispatch();
    }

    fn handle(&mut self, event: Event) {
        self.now_us = event.at_us;
        match event.what {
            What::Wake => {}
            What::RoundStart => self.begin_round(),
            What::End(lane, generation) => {
                let index = LANES.iter().position(|&l| l == lane).unwrap_or(LINK);
                if self.generations[index] == generation {
                    self.end_job(index);
                }
            }
        }
    }

    fn end_job(&mut self, lane: usize) {
        let Some(job) = self.jobs[lane].take() else { return };
        let span = Span {
            lane: LANES[lane],
            item: job.item as u32,
            round: job.round,
            start_us: job.started_us,
            end_us: self.now_us,
        };
        self.timeline.spans.push(span);
        self.generations[lane] += 1;
        if lane == LINK {
            if let Some(promotion) = self.promotion_of[job.item] {
                self.arrived[promotion] = job.round + 1;
            }
        } else {
            self.end_item(job.item, lane);
        }
        self.restretch();
    }

    fn end_item(&mut self, item: usize, lane: usize) {
        if let (GPU, Some(promotion)) = (lane, self.promotion_of[item]) {
            self.read[promotion] = self.round + 1;
        }
        let cost = &self.run.case.items[item];
        let switch_us = if lane == CPU { cost.to_gpu_us } else { cost.to_cpu_us };
        let there_us = self.now_us + f64::from(switch_us) * self.run.load.link;
        let mut available = [self.now_us; 2];
        available[1 - lane] = there_us;
        self.available_us[item] = Some(available);
        if there_us > self.now_us {
            self.at(there_us, What::Wake);
        }
        let done = self.queues.iter().all(VecDeque::is_empty) && self.jobs[CPU].is_none() && self.jobs[GPU].is_none();
        if done {
            self.round += 1;
            self.started = false;
            self.available_us.fill(None);
            let next_us = self.now_us + f64::from(self.run.case.gap_us);
            self.timeline.round_starts_us.push(next_us);
            self.at(next_us, What::RoundStart);
        }
    }

    /// Starts whatever can start now.
    fn dispatch(&mut self) {
        for lane in [CPU, GPU] {
            if self.started && self.jobs[lane].is_none() && self.head_is_ready(lane) {
                self.start_item(lane);
            }
        }
        if self.jobs[LINK].is_none() && self.head_copy_is_ready() {
            self.start_copy();
        }
    }

    fn head_is_ready(&self, lane: usize) -> bool {
        let Some(&item) = self.queues[lane].front() else { return false };
        let here = |producer: usize| self.available_us[producer].is_some_and(|at| at[lane] <= self.now_us);
        let inputs_here = self.run.model.inputs_of(item).iter().all(|producer| here(producer.index()));
        let weights_here = self.promotion_of[item].is_none_or(|p| self.arrived[p] > self.round);
        inputs_here && weights_here
    }

    fn start_item(&mut self, lane: usize) {
        let Some(item) = self.queues[lane].pop_front() else { return };
        for producer in self.run.model.inputs_of(item) {
            self.note_switch(producer.index(), lane);
        }
        let (case, load) = (self.run.case, &self.run.load);
        let work_us = if lane == GPU {
            f64::from(case.items[item].gpu_us) * load.gpu
        } else {
            let cpu_us = case.cpu_us[self.team * self.on_gpu.len() + item];
            f64::from(cpu_us) * load.cpu_factor(self.run.model.teams[self.team].threads)
        };
        self.start(lane, item, self.round, work_us);
    }

    /// Adds the span of an activation that moved to `lane` for its first reader there.
    fn note_switch(&mut self, producer: usize, lane: usize) {
        let Some(available) = self.available_us[producer] else { return };
        let (start_us, end_us) = (available[1 - lane], available[lane]);
        let item = producer as u32;
        let span = Span { lane: Lane::Switch, item, round: self.round, start_us, end_us };
        if end_us > start_us && !self.timeline.spans.iter().rev().take(64).any(|known| *known == span) {
            self.timeline.spans.push(span);
        }
    }

    fn head_copy_is_ready(&self) -> bool {
        let Some(copy) = self.copies.front() else { return false };
        let promotion = &self.run.schedule.promotions[copy.promotion];
        let routed = match self.run.case.items[promotion.item.index()].stream_after {
            None => true,
            Some(router) => {
                copy.round == self.round && self.available_us[router.index()].is_some_and(|at| at[CPU] <= self.now_us)
            }
        };
        routed && self.slot_is_free(copy)
    }

    /// Whether all earlier users of the slot's bytes have read: those before in this round, all in rounds before.
    fn slot_is_free(&self, copy: &Copy) -> bool {
        let slot = |p: usize| &self.run.slots.slots[self.run.schedule.promotions[p].slot.index()];
        let mine = slot(copy.promotion);
        (0..self.read.len()).all(|other| {
            let theirs = slot(other);
            let apart = mine.offset_bytes >= theirs.offset_bytes + theirs.size_bytes
                || theirs.offset_bytes >= mine.offset_bytes + mine.size_bytes;
            let rounds_needed = copy.round + u32::from(other < copy.promotion);
            apart || self.read[other] >= rounds_needed
        })
    }

    fn start_copy(&mut self) {
        let Some(copy) = self.copies.pop_front() else { return };
        let item = self.run.schedule.promotions[copy.promotion].item.index();
        let work_us = f64::from(self.run.case.items[item].stream_us) * self.run.load.link;
        self.start(LINK, item, copy.round, work_us);
    }

    fn start(&mut self, lane: usize, item: usize, round: u32, work_us: f64) {
        let (started_us, since_us) = (self.now_us, self.now_us);
        self.jobs[lane] = Some(Job { item, round, started_us, left_us: work_us, since_us, stretch: 0.0 });
        self.restretch();
    }

    /// Brings the speeds of CPU work and transfers up to date and schedules their new ends.
    fn restretch(&mut self) {
        let share = match (&self.jobs[CPU], &self.jobs[LINK]) {
            (Some(cpu), Some(_)) => f64::from(self.run.case.items[cpu.item].dram_share),
            _ => 0.0,
        };
        let team = &self.run.model.teams[self.team];
        let cpu_stretch = 1.0 + share * (f64::from(team.cpu_slowdown_while_link) - 1.0);
        let link_stretch = 1.0 + share * (f64::from(team.link_slowdown_while_cpu) - 1.0);
        for (lane, stretch) in [(CPU, cpu_stretch), (GPU, 1.0), (LINK, link_stretch)] {
            let now_us = self.now_us;
            let Some(job) = &mut self.jobs[lane] else { continue };
            if job.stretch == stretch {
                continue;
            }
            if job.stretch > 0.0 {
                job.left_us = (job.left_us - (now_us - job.since_us) / job.stretch).max(0.0);
            }
            job.since_us = now_us;
            job.stretch = stretch;
            let end_us = now_us + job.left_us * stretch;
            self.generations[lane] += 1;
            self.at(end_us, What::End(LANES[lane], self.generations[lane]));
        }
    }
}
