//! Watches whether others take the team's cores, and moves the team off its pins when that helps.
//!
//! Evidence: `/proc/self/task/TID/schedstat` counts how long each worker wanted to run and could not. Measured on 16
//! cores (steps of 20 to 100 us, speed kept beside busy loops): a team smaller than the machine keeps 0.45 pinned
//! beside loops on its own cores and 0.95 unpinned, because free cores exist; a team as large as the machine keeps 0.4
//! to 0.5 pinned and 0.05 to 0.25 unpinned, because the kernel stacks two workers on one core. So: unpin only when
//! enough cores idle, and go back when it does not help. Sleeping sooner hurts in every case (0.1 to 0.2 with a spin of
//! 2 us): the spin stays. The number of workers is not decided here: a schedule carries it, `Team::set_active` applies
//! it. [`decide`] is pure and tested by table; the rest reads small files every [`SAMPLE_EVERY`].

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::thread::Pid;

use crate::affinity;
use crate::clock::{Nanos, process_cpu_time};
use crate::topology::CpuId;

/// Time between two looks.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// Shares of wanted time not received: above the first a worker is contested, below the second it is calm. Wake-ups
/// alone cost a few per cent.
const CONTESTED_SHARE: f32 = 0.15;
const CALM_SHARE: f32 = 0.05;

/// Looks that must agree before a move, and looks without a move after one that did not help.
const LOOKS_TO_MOVE: u32 = 3;
const LOOKS_OF_PENANCE: u32 = 100;
/// Calm looks after which an unpinned team takes its own cores back.
const LOOKS_TO_RETURN: u32 = 200;

/// How much of the CPU time that the team wanted it did not get, since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// Of the worst worker, 0 to 1. A step waits for its slowest worker, so this one sets the pace.
    pub worst_share: f32,
    /// Over all workers.
    pub mean_share: f32,
    /// Workers above 15 %.
    pub contested: usize,
    /// Cores that a team of any size would have for itself: those that the workers have now, as far as nobody else
    /// wants them, and idle ones. `None` until it is known, and after each change of the number of workers.
    pub free_cores: Option<f32>,
}

impl Pressure {
    /// Whether no worker lost more than wake-ups cost.
    pub fn is_calm(&self) -> bool {
        self.worst_share < CALM_SHARE
    }

    /// The slowdown that the worst worker saw: 1 when nobody else runs, 2 beside one equal competitor.
    pub fn slowdown(&self) -> f32 {
        1.0 / (1.0 - self.worst_share.clamp(0.0, 0.99))
    }
}

/// Where the team is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Each worker on its CPU.
    Pinned,
    /// Each worker anywhere in the process's mask.
    Free,
}

/// What `decide` remembers between looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mood {
    /// Where the team is.
    pub placement: Placement,
    contested_looks: u32,
    calm_looks: u32,
    penance: u32,
}

impl Mood {
    const START: Self = Self { placement: Placement::Pinned, contested_looks: 0, calm_looks: 0, penance: 0 };

    fn moved_to(placement: Placement, penance: u32) -> Self {
        Self { placement, contested_looks: 0, calm_looks: 0, penance }
    }
}

/// The next mood. `idle_cpus`: usable CPUs on which nothing ran lately; `active` of `cpus` CPUs belong to workers.
pub fn decide(mood: Mood, pressure: Pressure, idle_cpus: usize, active: usize, cpus: usize) -> Mood {
    let contested = pressure.worst_share > CONTESTED_SHARE;
    let calm = pressure.is_calm();
    let mut next = Mood {
        contested_looks: if contested { mood.contested_looks + 1 } else { 0 },
        calm_looks: if calm { mood.calm_looks + 1 } else { 0 },
        penance: mood.penance.saturating_sub(1),
        ..mood
    };
    match mood.placement {
        Placement::Pinned => {
            let room = active < cpus && idle_cpus >= pressure.contested.max(1);
            if next.contested_looks >= LOOKS_TO_MOVE && room && next.penance == 0 {
                next = Mood::moved_to(Placement::Free, 0);
            }
        }
        Placement::Free if active >= cpus => next = Mood::moved_to(Placement::Pinned, 0),
        Placement::Free if next.contested_looks >= LOOKS_TO_MOVE => {
            next = Mood::moved_to(Placement::Pinned, LOOKS_OF_PENANCE);
        }
        Placement::Free if next.calm_looks >= LOOKS_TO_RETURN => next = Mood::moved_to(Placement::Pinned, 0),
        Placement::Free => {}
    }
    next
}

/// Time on and off the core of one thread, in nanoseconds since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sched {
    run_ns: u64,
    delay_ns: u64,
}

impl Sched {
    /// Time that the thread wanted a core until `after`.
    fn wanted_ns(self, after: Self) -> u64 {
        after.delay_ns.saturating_sub(self.delay_ns) + after.run_ns.saturating_sub(self.run_ns)
    }

    /// The share of that which it did not get. A thread that hardly ran says nothing: one late wake-up would look like
    /// pressure.
    fn share_lost(self, after: Self) -> Option<f32> {
        let wanted_ns = self.wanted_ns(after);
        let says_something = wanted_ns >= SAMPLE_EVERY.as_nanos() as u64 / 50;
        says_something.then(|| after.delay_ns.saturating_sub(self.delay_ns) as f32 / wanted_ns as f32)
    }
}

/// Parses `RUN_NS DELAY_NS SLICES`.
fn parse_schedstat(text: &str) -> Option<Sched> {
    let mut parts = text.split_whitespace().map(str::parse);
    Some(Sched { run_ns: parts.next()?.ok()?, delay_ns: parts.next()?.ok()? })
}

fn pressure_between(before: &[Sched], after: &[Sched]) -> Pressure {
    let (mut pressure, mut wanted_total, mut delay_total) = (Pressure::default(), 0, 0);
    for (before, after) in before.iter().zip(after) {
        let (delay, wanted) = (after.delay_ns.saturating_sub(before.delay_ns), before.wanted_ns(*after));
        let Some(share) = before.share_lost(*after) else { continue };
        pressure.worst_share = pressure.worst_share.max(share);
        pressure.contested += usize::from(share > CONTESTED_SHARE);
        (wanted_total, delay_total) = (wanted_total + wanted, delay_total + delay);
    }
    pressure.mean_share = delay_total as f32 / (wanted_total as f32).max(1.0);
    pressure
}

/// Idle time (idle and iowait) of each CPU in `/proc/stat`, in ticks of 10 ms.
fn parse_idle_ticks(stat: &str) -> Vec<(CpuId, u64)> {
    let lines = stat.lines().filter_map(|line| {
        let mut parts = line.strip_prefix("cpu").filter(|rest| !rest.starts_with(' '))?.split_whitespace();
        let cpu = parts.next()?.parse().ok()?;
        let ticks: Vec<u64> = parts.take(5).filter_map(|part| part.parse().ok()).collect();
        Some((CpuId(cpu), ticks.get(3)? + ticks.get(4)?))
    });
    lines.collect()
}

/// See the module text. Owned by the team's caller.
pub struct Governor {
    /// One per worker: its thread, and its file once opened.
    threads: Vec<(Option<Pid>, Option<File>)>,
    cpus: Vec<CpuId>,
    all_cpus: Vec<CpuId>,
    before: Vec<Sched>,
    after: Vec<Sched>,
    looked_at: Instant,
    idle_before: Vec<(CpuId, u64)>,
    idle_looked_at: Instant,
    idle_cpus: usize,
    mood: Mood,
    pressure: Pressure,
    /// Workers of the looks so far.
    team: usize,
    beyond: Beyond,
}

/// Cores that idle beside the team.
struct Beyond {
    since: Instant,
    /// Time that the workers wanted a core since then.
    wanted_ns: u64,
    /// Time that all workers had one since then, active or not, and time of the whole process then.
    run_ns: u64,
    process: Nanos,
    /// Idle ticks of the team's CPUs then.
    idle_ticks: u64,
    /// What the last span found.
    cores: Option<f32>,
}

impl Beyond {
    /// A span begins.
    fn start(idle_ticks: u64, cores: Option<f32>) -> Self {
        let process = process_cpu_time();
        Self { since: Instant::now(), wanted_ns: 0, run_ns: 0, process, idle_ticks, cores }
    }
}

/// How long idle cores are counted: the kernel counts in ticks of 10 ms.
const BEYOND_EVERY: Duration = Duration::from_millis(200);

/// Cores that idled, of `cpus`, without the workers' own rests: `idle_s` in all, `wanted_s` wanted by `active` workers.
fn beyond_cores(idle_s: f64, wanted_s: f64, span_s: f64, active: usize, cpus: usize) -> f32 {
    let rests_s = (active as f64 * span_s - wanted_s).max(0.0);
    let others = cpus.saturating_sub(active) as f64;
    ((idle_s - rests_s) / span_s.max(1e-9)).clamp(0.0, others) as f32
}

/// Cores that workers have for themselves. Who shares a core and wants all of it gets as much as the worker does, so a
/// worker that loses half of its time has nothing for itself: a smaller team would leave that core to them.
fn own_cores(shares: impl Iterator<Item = f32>) -> f32 {
    shares.map(|share| (1.0 - 2.0 * share).max(0.0)).sum()
}

impl Governor {
    /// For workers pinned one each to `cpus`; `all_cpus` is the process's mask. Threads are added as they start.
    pub fn new(cpus: Vec<CpuId>, all_cpus: Vec<CpuId>) -> Self {
        let now = Instant::now();
        Self {
            threads: Vec::new(),
            cpus,
            all_cpus,
            before: Vec::new(),
            after: Vec::new(),
            looked_at: now,
            idle_before: Vec::new(),
            idle_looked_at: now,
            idle_cpus: 0,
            mood: Mood::START,
            pressure: Pressure::default(),
            team: 0,
            beyond: Beyond::start(0, None),
        }
    }

    /// Adds the next worker. One that is not movable is watched only.
    pub fn add(&mut self, tid: Pid, movable: Movable) {
        let file = File::open(format!("/proc/self/task/{}/schedstat", tid.as_raw_nonzero())).ok();
        self.threads.push(((movable == Movable::Yes).then_some(tid), file));
        self.before.push(Sched::default());
        self.after.push(Sched::default());
        let last = self.threads.len() - 1;
        self.before[last] = self.read(last).unwrap_or_default();
    }

    /// What the last look found.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Where the team is.
    pub fn placement(&self) -> Placement {
        self.mood.placement
    }

    /// To be called between rounds: a clock read, and every [`SAMPLE_EVERY`] the look and its consequence.
    pub fn after_round(&mut self, active: usize) {
        if active != self.team {
            self.begin(active);
        } else if self.looked_at.elapsed() >= SAMPLE_EVERY {
            self.look(active);
        }
    }

    /// A team of another size: what was seen of the one before says nothing of it.
    #[cold]
    fn begin(&mut self, active: usize) {
        for index in 0..self.threads.len() {
            self.before[index] = self.read(index).unwrap_or(self.before[index]);
        }
        self.team = active;
        self.looked_at = Instant::now();
        self.pressure = Pressure::default();
        self.beyond = Beyond::start(self.idle_ticks(active), None);
    }

    /// Idle ticks of the team's CPUs; 0 where a team of this size leaves none idle.
    fn idle_ticks(&self, active: usize) -> u64 {
        if active >= self.cpus.len() {
            return 0;
        }
        let ticks = parse_idle_ticks(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
        ticks.into_iter().filter(|(cpu, _)| self.cpus.contains(cpu)).map(|(_, ticks)| ticks).sum()
    }

    fn count_beyond(&mut self, (wanted_ns, run_ns): (u64, u64), active: usize) {
        self.beyond.wanted_ns += wanted_ns;
        self.beyond.run_ns += run_ns;
        let span = self.beyond.since.elapsed();
        if active >= self.cpus.len() {
            self.beyond.cores = Some(0.0);
        } else if span >= BEYOND_EVERY {
            let ticks = self.idle_ticks(active);
            // Own threads that are no workers (copies, the driver's) are there in calm too: they take nothing.
            let own_ns = process_cpu_time().since(self.beyond.process).0.saturating_sub(self.beyond.run_ns);
            let idle_s = ticks.saturating_sub(self.beyond.idle_ticks) as f64 / 100.0 + own_ns as f64 / 1e9;
            let wanted_s = self.beyond.wanted_ns as f64 / 1e9;
            let cores = beyond_cores(idle_s, wanted_s, span.as_secs_f64(), active, self.cpus.len());
            self.beyond = Beyond::start(ticks, Some(cores));
        }
    }

    #[cold]
    fn look(&mut self, active: usize) {
        let workers = active.min(self.threads.len());
        for index in 0..self.threads.len() {
            self.after[index] = self.read(index).unwrap_or(self.before[index]);
        }
        let (before, after) = (&self.before[..workers], &self.after[..workers]);
        let pressure = pressure_between(before, after);
        let own = own_cores(before.iter().zip(after).map(|(before, after)| before.share_lost(*after).unwrap_or(0.0)));
        let wanted_ns = before.iter().zip(after).map(|(before, after)| before.wanted_ns(*after)).sum();
        let all = self.before.iter().zip(&self.after);
        let run_ns = all.map(|(before, after)| after.run_ns.saturating_sub(before.run_ns)).sum();
        self.count_beyond((wanted_ns, run_ns), active);
        self.pressure = Pressure { free_cores: self.beyond.cores.map(|beyond| own + beyond), ..pressure };
        std::mem::swap(&mut self.before, &mut self.after);
        self.looked_at = Instant::now();
        if self.pressure.worst_share > CONTESTED_SHARE {
            self.count_idle();
        }
        let next = decide(self.mood, self.pressure, self.idle_cpus, active, self.cpus.len());
        if next.placement != self.mood.placement {
            self.place(next.placement);
        }
        self.mood = next;
    }

    fn read(&self, index: usize) -> Option<Sched> {
        let mut buffer = [0; 64];
        let length = self.threads[index].1.as_ref()?.read_at(&mut buffer, 0).ok()?;
        parse_schedstat(std::str::from_utf8(&buffer[..length]).ok()?)
    }

    /// Counts the CPUs that idled for over half of the time since the last count (at least 100 ms ago).
    fn count_idle(&mut self) {
        let passed = self.idle_looked_at.elapsed();
        if passed < 2 * SAMPLE_EVERY && !self.idle_before.is_empty() {
            return;
        }
        let now = parse_idle_ticks(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
        let half = passed.as_millis() as u64 / 10 / 2;
        let idle = now
            .iter()
            .zip(&self.idle_before)
            .filter(|((cpu, now), (_, before))| self.all_cpus.contains(cpu) && now.saturating_sub(*before) > half);
        self.idle_cpus = if passed < 20 * SAMPLE_EVERY { idle.count() } else { 0 };
        (self.idle_before, self.idle_looked_at) = (now, Instant::now());
    }

    fn place(&self, placement: Placement) {
        for (index, cpu) in self.cpus.iter().enumerate().take(self.threads.len()) {
            // The thread that built the team may be gone and its number another's: its file does not read any more.
            let (Some(tid), Some(_)) = (&self.threads[index].0, self.read(index)) else { continue };
            match placement {
                Placement::Pinned => affinity::restrict_thread(Some(*tid), &[*cpu]),
                Placement::Free => affinity::restrict_thread(Some(*tid), &self.all_cpus),
            };
        }
    }
}

/// Whether the governor may change a thread's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Movable {
    /// A pinned worker.
    Yes,
    /// A caller that asked to be left alone.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTESTED: Pressure = Pressure { worst_share: 0.5, mean_share: 0.3, contested: 2, free_cores: None };
    const CALM: Pressure = Pressure { worst_share: 0.01, mean_share: 0.01, contested: 0, free_cores: None };

    /// Feeds `looks` equal looks and returns where the team ends.
    #[track_caller]
    fn check(start: Placement, pressure: Pressure, idle: usize, active: usize, looks: u32, expected: Placement) {
        let mut mood = Mood::moved_to(start, 0);
        for _ in 0..looks {
            mood = decide(mood, pressure, idle, active, 16);
        }
        assert_eq!(mood.placement, expected, "{start:?} {pressure:?} idle {idle} active {active} looks {looks}");
    }

    #[test]
    fn a_small_team_moves_to_idle_cores_and_a_full_one_stays() {
        use Placement::{Free, Pinned};
        check(Pinned, CONTESTED, 6, 6, 2, Pinned); // too early
        check(Pinned, CONTESTED, 6, 6, 3, Free);
        check(Pinned, CONTESTED, 1, 6, 3, Pinned); // fewer idle cores than contested workers
        check(Pinned, CONTESTED, 6, 16, 99, Pinned); // nowhere to go
        check(Pinned, CALM, 16, 6, 99, Pinned);
        check(Free, CALM, 16, 16, 1, Pinned); // the team grew to the whole machine
        check(Free, CALM, 9, 6, 199, Free);
        check(Free, CALM, 9, 6, 200, Pinned);
        check(Free, CONTESTED, 0, 6, 3, Pinned); // it did not help
    }

    #[test]
    fn a_move_that_did_not_help_is_not_repeated_soon() {
        let (mut mood, mut moves) = (Mood::moved_to(Placement::Free, 0), 0);
        for _ in 0..103 {
            let next = decide(mood, CONTESTED, 9, 6, 16);
            moves += u32::from(next.placement != mood.placement);
            mood = next;
        }
        assert_eq!((mood.placement, moves), (Placement::Free, 2));
    }

    #[test]
    fn pressure_is_the_share_of_wanted_time_not_received() {
        let before = [Sched { run_ns: 5, delay_ns: 7 }; 3];
        let after = [
            Sched { run_ns: 5 + 30_000_000, delay_ns: 7 + 10_000_000 },
            Sched { run_ns: 5 + 40_000_000, delay_ns: 7 },
            Sched { run_ns: 5 + 10, delay_ns: 7 + 1000 }, // hardly ran
        ];
        let pressure = pressure_between(&before, &after);
        assert_eq!((pressure.worst_share, pressure.mean_share, pressure.contested), (0.25, 0.125, 1));
        assert!((pressure.slowdown() - 4.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn free_cores_are_those_without_others_and_idle_ones() {
        // 16 workers, others on 10 of their cores at equal rights, or moving over all of them.
        assert_eq!(own_cores((0..16).map(|index| if index < 10 { 0.5 } else { 0.0 })), 6.0);
        assert_eq!(own_cores((0..16).map(|_| 0.5 * 10.0 / 16.0)), 6.0);
        // 6 workers that want their cores four fifths of the time, 10 other cores: busy, idle, 3 idle.
        let beyond = |idle_s| beyond_cores(idle_s, 0.8 * 6.0 * 0.2, 0.2, 6, 16);
        for (idle_cores, beyond_is) in [(0.0, 0.0), (10.0, 10.0), (3.0, 3.0)] {
            let found = beyond((0.2 * 6.0 + idle_cores) * 0.2);
            assert!((found - beyond_is).abs() < 1e-4, "{idle_cores}: {found}");
        }
        // Ticks of 10 ms round: never more than there are, never fewer than none.
        assert_eq!((beyond(10.0), beyond(0.0)), (10.0, 0.0));
    }

    #[test]
    fn kernel_files_are_parsed_and_odd_ones_ignored() {
        assert_eq!(parse_schedstat("12 34 5\n"), Some(Sched { run_ns: 12, delay_ns: 34 }));
        assert_eq!(parse_schedstat(""), None);
        assert_eq!(parse_schedstat("x 1 2"), None);
        let stat = "cpu  1 2 3 4 5 6\ncpu0 1 0 3 40 2 0 0\ncpu11 1 0 3 7 1\ncpu2 1\nintr 5\n";
        assert_eq!(parse_idle_ticks(stat), [(CpuId(0), 42), (CpuId(11), 8)]);
    }
}
