//! How far ahead of the CPU's parts worker 0 queues: commands, and transfers between them. Pure, made at load. Not
//! here: the queueing (`driver/queue.rs`). Next: `crossings.rs`.

use super::{Command, Fill, Known};

/// Commands that are queued at most behind a wait for the CPU part that is about to begin: GPU work must be there when
/// the part ends, but queueing takes the time of the part's own worker.
const LOOK_AHEAD: usize = 64;

/// Transfers among them. They cannot begin before the part ends, each is hundreds of operations, and a driver has room
/// for about a thousand that cannot begin: the call after those waits for room, and the part for the call, for ever.
pub(super) const FILLS_AHEAD: usize = 2;

/// Transfers between the commands: `fills` are positions among the commands without signals, which went to `places`.
pub(super) fn placed(fills: &[(usize, usize)], ahead: &[usize], places: &[usize], commands: &[Command]) -> Vec<Fill> {
    let runs = |promotion: usize| {
        let run = |command: &Command| matches!(command, Command::Run(_, Some(run)) if *run == promotion);
        // The command before it lets operators read the slot.
        commands.iter().position(run).map(|position| position.saturating_sub(1))
    };
    let fill = |&(position, promotion): &(usize, usize)| {
        let before = runs(promotion).filter(|_| !ahead.contains(&promotion)).unwrap_or(commands.len());
        Fill { promotion, after: places[position], before }
    };
    fills.iter().map(fill).collect()
}

/// What bounds how far worker 0 queues ahead.
pub(super) struct Queue<'a> {
    pub commands: &'a [Command],
    pub fills: &'a [Fill],
    pub known: &'a [Option<Known>],
}

impl Queue<'_> {
    /// The first command that waits for a part from this one on.
    fn first_wait(&self, after: usize) -> usize {
        let waits = |command: &Command| matches!(command, Command::WaitCpu(part) if *part >= after);
        self.commands.iter().position(waits).unwrap_or(self.commands.len())
    }

    /// How many commands may be queued before each part ends: up to the signal that it needs, all that the GPU can do
    /// beside it, and a little of what follows it; but no reader of a transfer that may not be queued.
    pub fn horizons(&self, needed: &[usize]) -> Vec<usize> {
        let mut reached = 0;
        let horizon = |(index, &needed): (usize, &usize)| {
            let beside = self.first_wait(index).max(needed);
            let next = self.first_wait(index + 1);
            let stop = self.fills.get(self.fill_limit(index)).map_or(self.commands.len(), |fill| fill.before);
            reached = next.min(beside + LOOK_AHEAD).max(beside).min(stop).max(needed).max(reached);
            reached
        };
        needed.iter().enumerate().map(horizon).collect()
    }

    /// How many transfers may be queued before a part ends: none that is known only after it, and few that cannot
    /// begin before it ends.
    pub fn fill_limit(&self, part: usize) -> usize {
        let wait = self.first_wait(part);
        let unknown = |fill: &Fill| match self.known[fill.promotion] {
            Some(Known::Part(known)) => known >= part,
            Some(Known::Signal(_)) => fill.after > wait,
            None => false,
        };
        let known = self.fills.iter().position(unknown).unwrap_or(self.fills.len());
        let free = self.fills.iter().position(|fill| fill.after > wait).unwrap_or(self.fills.len());
        known.min(free + FILLS_AHEAD)
    }
}
