//! What ran when in the last rounds: rings that every worker and the executor fill as they go, and their export as one
//! Chrome trace of a round. Costs two looks at the clock a step and worker; in rounds of one token, whose light steps
//! take no longer than that, steps without a barrier are only seen on worker 0 and when somebody asks for a trace.
//! Not here: the rings (`device::trace`).

use device::clock::{Clock, Nanos};
use device::trace::{Entry, Ring, Track, chrome_trace};
use plan_format::program::Program;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that each ring keeps: more than a round has.
const ENTRIES: usize = 4096;

/// What an entry was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// An operator, by index.
    Op(u32),
    /// Operators of the items from this one on.
    Items(u32),
    /// Activations on their way to the GPU.
    ToGpu,
    /// Activations on their way to the host.
    ToHost,
    /// An item's weights on their way to a slot.
    Fill(u32),
    /// Waiting for the GPU.
    Wait,
    /// Another schedule than in the round before, by number.
    Switch(u32),
    /// An item's weights on their way to where rounds of few tokens hold them.
    Hold(u32),
    /// Work for the GPU is being queued.
    Queue,
}

const KIND_SHIFT: u32 = 28;
const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl Label {
    fn encode(self) -> u32 {
        let (kind, index) = match self {
            Label::Op(index) => (0, index),
            Label::Items(index) => (1, index),
            Label::ToGpu => (2, 0),
            Label::ToHost => (3, 0),
            Label::Fill(index) => (4, index),
            Label::Wait => (5, 0),
            Label::Switch(index) => (6, index),
            Label::Hold(index) => (7, index),
            Label::Queue => (8, 0),
        };
        kind << KIND_SHIFT | index & INDEX_MASK
    }

    fn decode(code: u32) -> Self {
        let index = code & INDEX_MASK;
        match code >> KIND_SHIFT {
            0 => Label::Op(index),
            1 => Label::Items(index),
            2 => Label::ToGpu,
            3 => Label::ToHost,
            4 => Label::Fill(index),
            5 => Label::Wait,
            6 => Label::Switch(index),
            7 => Label::Hold(index),
            _ => Label::Queue,
        }
    }

    fn text(self, program: &Program) -> String {
        let item = |index: u32| program.items.get(index as usize).map_or("?", |item| item.name.as_str());
        match self {
            Label::Op(index) => match program.ops.get(index as usize) {
                Some(op) => format!("{} {}", op.kind.name(), item(op.item.0)),
                None => "?".to_owned(),
            },
            Label::Items(index) => item(index).to_owned(),
            Label::ToGpu => "activations to the GPU".to_owned(),
            Label::ToHost => "activations to the host".to_owned(),
            Label::Fill(index) => format!("transfer {}", item(index)),
            Label::Wait => "wait for the GPU".to_owned(),
            Label::Switch(index) => format!("switch to schedule {index}"),
            Label::Hold(index) => format!("hold {}", item(index)),
            Label::Queue => "queue work for the GPU".to_owned(),
        }
    }
}

/// The rings of one executor.
pub struct Trace {
    clock: Clock,
    workers: Vec<Ring>,
    /// Written by worker 0: the executor itself and the GPU.
    others: Ring,
    marks: Vec<AtomicU64>,
    detail: Detail,
}

/// Which steps of rounds of one token are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Those that end with a barrier.
    Meetings,
    /// All steps of worker 0.
    AllSteps,
}

impl Trace {
    /// Rings for so many workers.
    pub fn new(clock: Clock, workers: usize) -> Self {
        let ring = |_| Ring::new(ENTRIES);
        let marks = (0..=workers).map(|_| AtomicU64::new(0)).collect();
        Self {
            clock,
            workers: (0..workers).map(ring).collect(),
            others: Ring::new(ENTRIES),
            marks,
            detail: Detail::Meetings,
        }
    }

    /// Which steps are written down from now on.
    pub fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
    }

    /// Whether all steps of a worker are written down.
    pub fn sees_all_steps(&self, worker: usize) -> bool {
        self.detail == Detail::AllSteps && worker == 0
    }

    /// A round begins: the one before is history.
    pub fn begin_round(&self) {
        let rings = self.workers.iter().chain([&self.others]);
        rings.zip(&self.marks).for_each(|(ring, mark)| mark.store(ring.mark(), Ordering::Relaxed));
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether steps take time on the clock: on a simulated machine only whole items do.
    pub fn sees_steps(&self) -> bool {
        matches!(self.clock, Clock::Wall(_))
    }

    /// A worker has run an operator since `start`.
    pub fn worker(&self, index: usize, split: usize, label: Label, start: Nanos) {
        let track = Track::Worker(index as u16);
        self.workers[index].push(entry(track, split, label, (start, self.now())));
    }

    /// Something else took a while. Worker 0 only.
    pub fn other(&self, track: Track, split: usize, label: Label, span: (Nanos, Nanos)) {
        self.others.push(entry(track, split, label, span));
    }

    /// Entries since the last round began, in order of their starts.
    pub fn round(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (ring, mark) in self.workers.iter().chain([&self.others]).zip(&self.marks) {
            ring.since(mark.load(Ordering::Relaxed), &mut entries);
        }
        entries.sort_by_key(|entry| (entry.start, entry.end));
        entries
    }

    /// The last round as a Chrome trace.
    pub fn chrome(&self, program: &Program) -> String {
        chrome_trace(&self.round(), |entry| Label::decode(entry.label).text(program))
    }
}

fn entry(track: Track, split: usize, label: Label, (start, end): (Nanos, Nanos)) -> Entry {
    Entry { track, split: split as u16, label: label.encode(), start, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_their_encoding() {
        use Label::*;
        for label in [Op(0), Op(1 << 20), Items(7), ToGpu, ToHost, Fill(3), Wait, Switch(12), Hold(5), Queue] {
            assert_eq!(Label::decode(label.encode()), label);
        }
    }

    #[test]
    fn a_round_holds_what_came_since_it_began() {
        let trace = Trace::new(Clock::wall(), 2);
        trace.worker(1, 0, Label::Op(1), trace.now());
        trace.begin_round();
        trace.worker(0, 3, Label::Op(2), trace.now());
        trace.other(Track::Control, 3, Label::Wait, (Nanos(u64::MAX - 1), Nanos(u64::MAX)));
        let round = trace.round();
        assert_eq!(
            round.iter().map(|entry| Label::decode(entry.label)).collect::<Vec<_>>(),
            [Label::Op(2), Label::Wait]
        );
        assert!(round.iter().all(|entry| entry.split == 3));
    }
}
