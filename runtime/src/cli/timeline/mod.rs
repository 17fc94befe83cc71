//! `ats-run bench --load`: decoding while others take cores, GPU and link in phases, each once with the schedule of
//! no load and once load-aware; the time of every token of both. So both see the same machine where its speed drifts.
//!
//! The context is taken back before it has grown far, so that a token costs the same throughout. Not here: the load
//! (`load/`), figures (`summary.rs`), drawing (`draw.rs`), the rest of the plan's table (`every.rs`). Next:
//! `summary.rs`.

mod draw;
mod every;
mod summary;

use super::Failure;
use super::bench::synthetic;
use super::load::{Generators, LoadSpec, Phase};
use super::residence;
use crate::engine::{Engine, Sequence, Wanted};
use clap::Args;
use device::clock::{Clock, Nanos};
use shared_cli::output::{say, write_whole};
use std::path::{Path, PathBuf};

/// Load and what is made of it.
#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// Decode while other processes take these percent of cores, link and GPU, one after the other in phases: with the
    /// schedule of no load, then load-aware. On a simulated machine its clock is slowed down instead.
    #[arg(long, value_name = "cpu=60,link=60,gpu=60", value_parser = LoadSpec::parse, conflicts_with = "pin_schedule")]
    load: Option<LoadSpec>,
    /// Write the time of every token under --load, drawn (.html, .svg) or as a table (.csv); may be given several
    /// times.
    #[arg(long, value_name = "FILE", requires = "load", value_parser = timeline_file)]
    timeline: Vec<PathBuf>,
    /// Seconds of each phase of --load [default: 8; on a simulated machine the time of 200 tokens].
    #[arg(long, value_name = "SECONDS", requires = "load", value_parser = seconds)]
    phase_seconds: Option<f64>,
    /// Then decode a few tokens with every schedule of the plan under each load, and name the fastest.
    #[arg(long, requires = "load")]
    every_schedule: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if (0.001..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("give 0.001 to 3600 seconds".to_owned()) }
}

fn timeline_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let known = matches!(extension(&path), "csv" | "html" | "svg");
    if known { Ok(path) } else { Err("name a .csv, .html or .svg file".to_owned()) }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Seconds of a phase on a real machine, and tokens of one on a simulated machine.
const PHASE_SECONDS: f64 = 8.0;
const PHASE_TOKENS: f64 = 200.0;
/// Tokens by which the context may grow before it is taken back.
pub const ROOM_TOKENS: usize = 256;
/// Rounds of each schedule before anything is measured: what is recorded is recorded by then.
const WARM_UP: usize = 4;

/// Which plan a pass ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The schedule of no load throughout.
    Fixed,
    /// Whatever the load asks for.
    LoadAware,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Policy::Fixed => "fixed",
            Policy::LoadAware => "load-aware",
        }
    }
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Its phase, by number.
    pub phase: usize,
    /// When it was there, since the pass began.
    pub at_s: f64,
    /// How long it took.
    pub took_us: f64,
    /// The schedule that ran.
    pub schedule: usize,
}

/// All phases under one policy.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The policy.
    pub policy: Policy,
    /// Its tokens.
    pub points: Vec<Point>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Model and machine.
    pub title: String,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Length of each.
    pub phase_s: f64,
    /// The passes.
    pub passes: Vec<Pass>,
    /// By schedule: threads and streamed items.
    pub schedules: Vec<(u16, usize)>,
    /// Why schedules changed, in words.
    pub switches: Vec<String>,
    /// The longest that choosing a schedule took between two rounds.
    pub choice_us: Option<f64>,
    /// Every decode schedule under each load; empty unless it was asked for.
    pub tried: Vec<every::Tried>,
}

impl TimelineArgs {
    /// Positions that the run needs beyond the depth; `None` = there is no load.
    pub fn room_tokens(&self) -> Option<usize> {
        self.load.as_ref().map(|_| ROOM_TOKENS)
    }

    /// Measures and writes everything. `title` names model and machine.
    pub fn run(&self, engine: &mut Engine, depth: usize, title: String) -> Result<(), Failure> {
        let Some(load) = self.load else { return Ok(()) };
        let mut bench = Bench::open(engine, depth)?;
        bench.warm_up()?;
        let phase_s = self.phase_seconds.map_or_else(|| bench.phase_seconds(), Ok)?;
        let mut timeline = bench.measure(&load, phase_s, title)?;
        if self.every_schedule {
            timeline.tried = bench.every(&load)?;
        }
        for path in &self.timeline {
            let text = match extension(path) {
                "csv" => summary::csv(&timeline),
                "svg" => draw::svg(&timeline),
                _ => draw::page(&timeline),
            };
            write_whole(path, text.as_bytes())?;
        }
        shared_cli::output::print(&summary::text(&timeline))
    }
}

/// A sequence that decodes at one depth.
struct Bench<'a> {
    engine: &'a mut Engine,
    sequence: Sequence,
    depth: usize,
    clock: Clock,
    fed: usize,
}

impl<'a> Bench<'a> {
    fn open(engine: &'a mut Engine, depth: usize) -> Result<Self, Failure> {
        let clock = engine.simulated_clock().unwrap_or_else(Clock::wall);
        let mut sequence = Sequence::default();
        let tokens = synthetic(engine.vocab(), 0, depth);
        engine.feed(&mut sequence, &tokens, Wanted::Nothing, &mut |_, _| ())?;
        engine.mark(&mut sequence);
        Ok(Bench { engine, sequence, depth, clock, fed: 0 })
    }

    /// Decodes a token; when it was there, and how long it took.
    fn token(&mut self) -> Result<(Nanos, f64), Failure> {
        let room = self.engine.context_tokens().min(self.depth + ROOM_TOKENS);
        if self.sequence.tokens.len() >= room {
            self.engine.rewind(&mut self.sequence, self.depth);
        }
        let token = synthetic(self.engine.vocab(), self.fed, 1);
        self.fed += 1;
        let start = self.clock.now();
        self.engine.feed(&mut self.sequence, &token, Wanted::Last, &mut |_, _| ())?;
        let end = self.clock.now();
        Ok((end, end.since(start).as_micros_f64()))
    }

    fn warm_up(&mut self) -> Result<(), Failure> {
        let schedules = self.engine.executor().decode_schedules();
        for schedule in schedules {
            self.engine.executor().pin_schedule(Some(schedule));
            (0..WARM_UP).try_for_each(|_| self.token().map(|_| ()))?;
        }
        self.engine.executor().pin_schedule(None);
        Ok(())
    }

    /// How long a phase is unless it was said.
    fn phase_seconds(&mut self) -> Result<f64, Failure> {
        if matches!(self.clock, Clock::Wall(_)) {
            return Ok(PHASE_SECONDS);
        }
        let mut took_us = 0.0;
        for _ in 0..WARM_UP {
            took_us += self.token()?.1;
        }
        Ok(PHASE_TOKENS * took_us / WARM_UP as f64 / 1e6)
    }

    fn measure(&mut self, load: &LoadSpec, phase_s: f64, title: String) -> Result<Timeline, Failure> {
        let phases = load.phases();
        let is_real = matches!(self.clock, Clock::Wall(_));
        let mut machine = Machine::loaded_by(load, &self.clock)?;
        let fixed = self.engine.executor().unloaded_schedule(self.depth as u32 + 1);
        let policies = [(Policy::Fixed, fixed), (Policy::LoadAware, None)];
        let mut passes = policies.map(|(policy, _)| Pass { policy, points: Vec::new() });
        for (index, phase) in phases.iter().enumerate() {
            self.take(&mut machine, &phase.load)?;
            for ((_, pin), pass) in policies.iter().zip(&mut passes) {
                self.engine.executor().pin_schedule(*pin);
                self.phase(index, phase_s, &mut pass.points)?;
            }
        }
        self.take(&mut machine, &LoadSpec::default())?;
        self.engine.executor().pin_schedule(None);
        let schedules = residence::schedules(self.engine);
        let switches = self.engine.executor().switches().0.iter().map(ToString::to_string).collect();
        // On a simulated machine it is no figure of that machine.
        let choice_us = is_real.then(|| self.engine.executor().slowest_choice().as_secs_f64() * 1e6);
        let passes = passes.to_vec();
        Ok(Timeline { title, phases, phase_s, passes, schedules, switches, choice_us, tried: Vec::new() })
    }

    /// A phase under one policy; its points begin where those of the phase before ended.
    fn phase(&mut self, index: usize, phase_s: f64, points: &mut Vec<Point>) -> Result<(), Failure> {
        let (start, before_s) = (self.clock.now(), phase_s * index as f64);
        let end = start + Nanos((phase_s * 1e9) as u64);
        while self.clock.now() < end {
            let (at, took_us) = self.token()?;
            let (at_s, schedule) =
                (before_s + at.since(start).as_micros_f64() / 1e6, self.engine.executor().schedule());
            points.push(Point { phase: index, at_s, took_us, schedule });
        }
        Ok(())
    }

    /// A load begins now.
    fn take(&mut self, machine: &mut Machine, load: &LoadSpec) -> Result<(), Failure> {
        if let Some(gpu) = self.engine.simulated_gpu() {
            gpu.add_load(load.script(self.clock.now()));
        }
        machine.take(load)
    }
}

/// What is told about load: processes, unless the machine is simulated.
struct Machine {
    generators: Option<Generators>,
}

impl Machine {
    fn loaded_by(load: &LoadSpec, clock: &Clock) -> Result<Self, Failure> {
        let is_real = matches!(clock, Clock::Wall(_));
        let generators = is_real.then(|| Generators::start(load, &mut |line| say(line))).transpose()?;
        Ok(Machine { generators })
    }

    fn take(&mut self, load: &LoadSpec) -> Result<(), Failure> {
        self.generators.as_mut().map_or(Ok(()), |generators| generators.take(load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_phases_are_checked_when_they_are_typed() {
        assert!(timeline_file("a/b.html").is_ok() && timeline_file("x.csv").is_ok());
        assert!(timeline_file("x.png").is_err_and(|error| error.contains(".csv")));
        assert_eq!(seconds("2.5"), Ok(2.5));
        assert!(seconds("0").is_err() && seconds("x").is_err() && seconds("nan").is_err());
    }
}
