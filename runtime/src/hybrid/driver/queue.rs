//! What worker 0 queues when. The GPU's queue must never be empty, but calls take time, and a team that has its inputs
//! must not wait for them: commands that a part's inputs come from are queued first, then one call at a time until the
//! GPU's signal has come, and beside the part what is left. Transfers, the longest, go piece by piece: 100 MB are 350
//! us of calls.
//!
//! On a simulated machine all that may be queued is queued before the wait, so that its clock does not depend on
//! threads. Not here: which commands and transfers may be queued (`script.rs`), a round's course (`driver.rs`).

use super::{Driver, Turn, gpu_us};
use crate::Error;
use crate::exec::trace::Label;
use crate::hybrid::crossings::Side;
use crate::hybrid::fills::Pace;
use crate::hybrid::marks::Mark;
use crate::hybrid::script::{Command, Fill, Known};
use device::clock::Nanos;
use device::gpu::Launch;
use device::timeline::{GpuTicket, SlotIndex};
use device::trace::Track;
use std::sync::Arc;

/// Part of a CPU part's time that worker 0 spends on queueing transfers beside it: the others take over what it would
/// have computed.
const SHARE_FOR_TRANSFERS: f64 = 0.25;

/// Rounds up to so many tokens are short: their transfers are queued in pieces.
const TOKENS_IN_PIECES: u32 = 8;

/// How far may be queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub commands: usize,
    pub fills: usize,
}

impl Driver {
    /// How far may be queued before a part ends.
    pub(super) fn limits(&self, turn: &Turn, part: usize) -> Limits {
        let script = &self.bound[turn.schedule].script;
        Limits { commands: script.horizons[part], fills: script.fill_limits[part] }
    }

    /// Whether the round's transfers are queued in pieces where there is time, and not as soon as they may.
    fn fills_wait(turn: &Turn) -> bool {
        turn.trace.sees_steps() && turn.args.tokens <= TOKENS_IN_PIECES
    }

    /// Queues all commands up to the limit. Errors: the GPU is lost or silent.
    pub(super) fn queue(&mut self, turn: &Turn, limits: Limits) -> Result<(), Error> {
        if self.queued >= limits.commands {
            return Ok(());
        }
        let start = turn.trace.now();
        while self.queued < limits.commands {
            while !Self::fills_wait(turn) && self.piece(turn, limits.fills)? {}
            self.queue_fills(turn, self.fills_due(turn))?;
            self.command(turn)?;
        }
        turn.trace.other(Track::Control, self.parts_done, Label::Queue, (start, turn.trace.now()));
        Ok(())
    }

    /// Queues all transfers up to number `until`.
    pub(super) fn queue_fills(&mut self, turn: &Turn, until: usize) -> Result<(), Error> {
        while self.fills_queued < until {
            let Fill { promotion, .. } = self.bound[turn.schedule].script.fills[self.fills_queued];
            let known = self.bound[turn.schedule].script.known[promotion];
            if let (Some(Known::Signal(number)), false) = (known, self.fills.is_open()) {
                self.wait_for(turn, number)?;
            }
            if !self.piece(turn, until)? {
                return Err(Error::Program { what: "a transfer before its router's part" });
            }
        }
        Ok(())
    }

    /// Beside a part: what does not take too long, as far as it may.
    pub(super) fn queue_beside(&mut self, turn: &Turn, part: usize, limits: Limits) -> Result<(), Error> {
        if !turn.trace.sees_steps() {
            self.queue(turn, limits)?;
            while self.piece(turn, limits.fills)? {}
            return Ok(());
        }
        let items = self.bound[turn.schedule].script.parts[part].items.clone();
        let part_us: f32 = turn.cpu_us.get(items).map_or(0.0, |times| times.iter().sum());
        let start = turn.trace.now();
        let end = start + Nanos::from_micros_f64(f64::from(part_us) * SHARE_FOR_TRANSFERS);
        while turn.trace.now() < end && self.queue_some(turn, limits)? {}
        // What the GPU does after the part is short, and must be there when it ends.
        while self.queued < limits.commands && self.fills_due(turn) <= self.fills_queued {
            self.command(turn)?;
        }
        turn.trace.other(Track::Control, part, Label::Queue, (start, turn.trace.now()));
        Ok(())
    }

    /// Queues a command or a piece of a transfer, if one may be queued. Never waits.
    fn queue_some(&mut self, turn: &Turn, limits: Limits) -> Result<bool, Error> {
        let commands = &self.bound[turn.schedule].script.commands;
        let may_start = self.queued < limits.commands && !matches!(commands[self.queued], Command::WaitCpu(_));
        if may_start && self.fills_due(turn) <= self.fills_queued {
            return self.command(turn).map(|()| true);
        }
        if self.piece(turn, limits.fills)? {
            return Ok(true);
        }
        if self.queued < limits.commands && self.fills_due(turn) <= self.fills_queued {
            return self.command(turn).map(|()| true);
        }
        Ok(false)
    }

    /// Transfers that must be queued before the next command is.
    fn fills_due(&self, turn: &Turn) -> usize {
        let fills = &self.bound[turn.schedule].script.fills;
        let due = fills[self.fills_queued..].iter().take_while(|fill| fill.before <= self.queued).count();
        self.fills_queued + due
    }

    /// Queues a piece of a transfer before number `limit`; `false` = none may begin.
    fn piece(&mut self, turn: &Turn, limit: usize) -> Result<bool, Error> {
        if self.fills.is_open() {
            self.fills.go_on(&mut self.timeline)?;
        } else {
            let Some(&fill) = self.bound[turn.schedule].script.fills.get(self.fills_queued) else { return Ok(false) };
            if self.fills_queued >= limit || fill.after > self.queued || !self.is_known(turn, fill.promotion)? {
                return Ok(false);
            }
            self.begin_fill(turn, fill.promotion)?;
        }
        if !self.fills.is_open() {
            self.end_fill(turn)?;
            self.fills_queued += 1;
        }
        Ok(true)
    }

    /// Whether the host knows what a transfer brings.
    fn is_known(&mut self, turn: &Turn, promotion: usize) -> Result<bool, Error> {
        match self.bound[turn.schedule].script.known[promotion] {
            None => Ok(true),
            Some(Known::Part(part)) => Ok(part < self.parts_done),
            Some(Known::Signal(number)) if turn.trace.sees_steps() => self.has_come(number),
            Some(Known::Signal(number)) => Ok(self.seen > number),
        }
    }

    /// A whole transfer, whatever the round's course.
    pub(super) fn fill(&mut self, turn: &Turn, promotion: usize) -> Result<(), Error> {
        self.begin_fill(turn, promotion)?;
        while self.fills.is_open() {
            self.fills.go_on(&mut self.timeline)?;
        }
        self.end_fill(turn)
    }

    fn begin_fill(&mut self, turn: &Turn, promotion: usize) -> Result<(), Error> {
        let bound = &self.bound[turn.schedule];
        let what = (SlotIndex(bound.slots[promotion]), bound.fills[promotion]);
        let mark = self.marks.take(&*self.gpu)?;
        self.filling = mark.map(|mark| (mark, promotion));
        let pace = if Self::fills_wait(turn) { Pace::InPieces } else { Pace::AtOnce };
        let ids = (&self.host_arena, turn.args.tokens as usize);
        self.fills.begin(&mut self.timeline, what, ids, (pace, mark.map(|mark| mark.begin)))
    }

    fn end_fill(&mut self, turn: &Turn) -> Result<(), Error> {
        let Some((mark, promotion)) = self.filling.take() else { return Ok(()) };
        self.gpu.record(self.timeline.transfer_stream(), mark.end)?;
        let item = self.bound[turn.schedule].items[promotion];
        let expected_us = turn.case.and_then(|case| case.items.get(item as usize)).map_or(0.0, |i| i.stream_us);
        self.marks.queued(mark, (Track::Transfer, self.parts_done, Label::Fill(item)), f64::from(expected_us));
        Ok(())
    }

    /// Waits for a signal of this round, which is queued, unless it or a later one has been seen.
    pub(super) fn wait_for(&mut self, turn: &Turn, number: usize) -> Result<(), Error> {
        self.wait_busily(turn, number, Limits { commands: 0, fills: 0 })
    }

    /// The same, while what may be queued is queued.
    pub(super) fn wait_busily(&mut self, turn: &Turn, number: usize, limits: Limits) -> Result<(), Error> {
        let start = turn.trace.now();
        if !turn.trace.sees_steps() {
            while self.queue_some(turn, limits)? {}
        }
        while turn.trace.sees_steps() && !self.has_come(number)? && self.queue_some(turn, limits)? {}
        while self.seen <= number
            && let Some((signal, ticket)) = self.next_signal(number)
        {
            self.timeline.cpu_waits_for_gpu(ticket)?;
            self.seen = signal + 1;
        }
        turn.trace.other(Track::Control, self.parts_done, Label::Wait, (start, turn.trace.now()));
        Ok(())
    }

    /// Whether a signal has come.
    fn has_come(&mut self, number: usize) -> Result<bool, Error> {
        while self.seen <= number
            && let Some((signal, ticket)) = self.next_signal(number)
        {
            if !self.timeline.cpu_sees_gpu(&ticket)? {
                self.signals.push_front((signal, ticket));
                return Ok(false);
            }
            self.timeline.cpu_waits_for_gpu(ticket)?;
            self.seen = signal + 1;
        }
        Ok(self.seen > number)
    }

    /// Takes the ticket of a signal; those before it are of no more use.
    fn next_signal(&mut self, number: usize) -> Option<(usize, GpuTicket)> {
        while self.signals.front().is_some_and(|(signal, _)| *signal < number) {
            self.signals.pop_front();
        }
        self.signals.pop_front_if(|(signal, _)| *signal == number)
    }

    /// Queues the next command.
    fn command(&mut self, turn: &Turn) -> Result<(), Error> {
        match &self.bound[turn.schedule].script.commands[self.queued] {
            &Command::WaitCpu(part) => {
                let ticket = self.timeline.gpu_waits_for_cpu()?;
                if part < self.parts_done {
                    self.timeline.cpu_done(ticket)?;
                } else {
                    self.waits.push_back((part, ticket));
                }
            }
            &Command::Signal(number) => {
                let ticket = self.timeline.gpu_signals_cpu()?;
                self.signals.push_back((number, ticket));
            }
            Command::Run(items, _) => {
                self.held.read(&mut self.timeline, &self.bound[turn.schedule].reads[self.queued])?;
                let (expected, label) = (gpu_us(turn.case, items.clone()), Label::Items(items.start as u32));
                self.launch(turn, expected, label)?;
            }
            Command::Move(side, crossings) => {
                let producers = crossings.iter().map(|crossing| crossing.item);
                let expected = self.hand_over.rest_us(turn.case, *side, producers);
                let label = if *side == Side::Gpu { Label::ToGpu } else { Label::ToHost };
                self.launch(turn, expected, label)?;
            }
            Command::Read(slot) => self.timeline.read(SlotIndex(slot.index()))?,
            Command::Release(slot) => self.timeline.release(SlotIndex(slot.index()))?,
        }
        self.queued += 1;
        Ok(())
    }

    /// Launches the operators of the command that is being queued; together they should take so long.
    fn launch(&mut self, turn: &Turn, expected_us: f32, label: Label) -> Result<(), Error> {
        let operators = Arc::clone(&self.bound[turn.schedule].operators[self.queued]);
        let expected = Nanos::from_micros_f64(f64::from(expected_us) / operators.len().max(1) as f64);
        let (compute, mark): (_, Option<Mark>) = (self.timeline.compute_stream(), self.marks.take(&*self.gpu)?);
        if let Some(mark) = mark {
            self.gpu.record(compute, mark.begin)?;
        }
        for op in operators.iter() {
            self.timeline.launch(&Launch { op: Arc::clone(op), args: turn.args.into(), expected })?;
        }
        if let Some(mark) = mark {
            self.gpu.record(compute, mark.end)?;
            self.marks.queued(mark, (Track::Compute, self.parts_done, label), f64::from(expected_us));
        }
        Ok(())
    }
}
