//! What a simulated machine costs: latencies, the link's curve, memory; and the scripted load that slows it down.
//!
//! Pure data and arithmetic. Built by whoever has a device profile (the planner's format is not known here). The costs
//! of operators come with each launch. Next: `stream.rs`, which spends this time.

use crate::clock::Nanos;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A point of the link's curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkPoint {
    /// Size of one copy.
    pub bytes: u64,
    /// Rate at that size, in 10⁹ bytes per second.
    pub rate_gbps: f64,
}

/// Machine figures of a simulated GPU and its host.
#[derive(Debug, Clone, PartialEq)]
pub struct SimProfile {
    /// For people and fingerprints: `rtx3060-laptop`.
    pub name: String,
    /// GPU memory of the device.
    pub memory_bytes: u64,
    /// GPU memory that is gone before the first allocation (context, others).
    pub context_bytes: u64,
    /// Host memory that may be pinned.
    pub pinned_limit_bytes: u64,
    /// Host to GPU by the copy engine, ascending sizes, at least one.
    pub link: Vec<LinkPoint>,
    /// Factor on the rate for memory that is not pinned, 0 to 1.
    pub pageable_factor: f64,
    /// Host time to submit a launch or a copy.
    pub submit: Nanos,
    /// Fixed time of a copy before its first byte.
    pub copy_start: Nanos,
    /// From the host's write of a flag to the start of the stream that waits for it.
    pub to_gpu: Nanos,
    /// From a stream's write of a flag to the host that polls it.
    pub to_cpu: Nanos,
}

impl SimProfile {
    /// Time of one copy on an unloaded link: interpolated between the curve's points by the logarithm of the size.
    pub fn copy_time(&self, bytes: u64, memory: SourceMemory) -> Nanos {
        let rate_gbps = match memory {
            SourceMemory::Pinned => self.rate_gbps(bytes),
            SourceMemory::Pageable => self.rate_gbps(bytes) * self.pageable_factor,
        };
        self.copy_start + Nanos((bytes as f64 / rate_gbps.max(1e-3)).round() as u64)
    }

    fn rate_gbps(&self, bytes: u64) -> f64 {
        let above = self.link.partition_point(|point| point.bytes <= bytes);
        match (above.checked_sub(1).map(|below| self.link[below]), self.link.get(above)) {
            (Some(low), Some(high)) => {
                let log = |bytes: u64| (bytes.max(1) as f64).ln();
                let share = (log(bytes) - log(low.bytes)) / (log(high.bytes) - log(low.bytes));
                low.rate_gbps + share * (high.rate_gbps - low.rate_gbps)
            }
            (Some(point), None) => point.rate_gbps,
            (None, point) => point.map_or(1.0, |point| point.rate_gbps),
        }
    }
}

/// What a copy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceMemory {
    /// Registered with the GPU.
    Pinned,
    /// Anything else.
    Pageable,
}

/// What can be slowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Every thread of the host, whatever the team's size: a lower clock, a busier memory.
    Cpu,
    /// The host's cores, some of which others take: a team of all cores is so many times slower, one that is no larger
    /// than what is left is not, and the first core too few halves one.
    Cores,
    /// The GPU's operators.
    Gpu,
    /// The copy engine and its link.
    Link,
}

/// From `at` on, work on `resource` takes `slowdown` times as long, until the next step of the same resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadStep {
    /// Virtual time.
    pub at: Nanos,
    /// What gets slower.
    pub resource: Resource,
    /// 1 = unloaded.
    pub slowdown: f64,
}

/// The scripted load of a run. It may be continued while the run goes on.
#[derive(Debug, Default)]
pub struct LoadScript(RwLock<Vec<LoadStep>>);

impl Clone for LoadScript {
    fn clone(&self) -> Self {
        Self(RwLock::new(self.steps().clone()))
    }
}

impl PartialEq for LoadScript {
    fn eq(&self, other: &Self) -> bool {
        *self.steps() == *other.steps()
    }
}

/// Slowdowns at a time, by [`Resource`].
type Slowdowns = [f64; 4];

impl LoadScript {
    /// A script; steps in any order. Slowdowns below 0.01 and not-a-number count as 1.
    pub fn new(steps: Vec<LoadStep>) -> Self {
        let script = Self::default();
        script.add(steps);
        script
    }

    /// Adds steps, which must lie in the future: work that has begun was timed without them.
    pub fn add(&self, steps: impl IntoIterator<Item = LoadStep>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.extend(steps.into_iter().map(|step| match step.slowdown >= 0.01 && step.slowdown.is_finite() {
            true => step,
            false => LoadStep { slowdown: 1.0, ..step },
        }));
        all.sort_by_key(|step| step.at);
    }

    fn steps(&self) -> RwLockReadGuard<'_, Vec<LoadStep>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// When `work` (unloaded time) that begins at `start` ends, with every change of load on the way.
    pub fn end_of(&self, resource: Resource, start: Nanos, work: Nanos) -> Nanos {
        self.play(start, work, |slowdowns| slowdowns[resource as usize])
    }

    /// The same for work of the host's team: its threads, and those of a full one.
    pub fn end_of_team(&self, team: (u32, u32), start: Nanos, work: Nanos) -> Nanos {
        self.play(start, work, |slowdowns| slowdowns[Resource::Cpu as usize] * crowding(slowdowns, team))
    }

    /// How many times slower a team (its threads, and those of a full one) is at `now` because it has more threads than
    /// cores.
    pub fn crowding(&self, team: (u32, u32), now: Nanos) -> f64 {
        crowding(&self.at(now), team)
    }

    /// The share of all cores that is left at `now`.
    pub fn cores_left(&self, now: Nanos) -> f64 {
        1.0 / self.at(now)[Resource::Cores as usize].max(1.0)
    }

    fn at(&self, now: Nanos) -> Slowdowns {
        let mut slowdowns = [1.0; 4];
        for step in self.steps().iter().filter(|step| step.at <= now) {
            slowdowns[step.resource as usize] = step.slowdown;
        }
        slowdowns
    }

    fn play(&self, start: Nanos, work: Nanos, factor: impl Fn(&Slowdowns) -> f64) -> Nanos {
        let (mut now, mut left, mut slowdowns) = (start, work.0 as f64, [1.0; 4]);
        for step in self.steps().iter() {
            let before = factor(&slowdowns);
            slowdowns[step.resource as usize] = step.slowdown;
            // Steps of other resources must not cut the work: every cut rounds.
            if step.at > now && factor(&slowdowns) != before {
                let could = step.at.since(now).0 as f64 / before;
                if could >= left {
                    return now + Nanos((left * before).round() as u64);
                }
                left -= could;
                now = step.at;
            }
        }
        now + Nanos((left * factor(&slowdowns)).round() as u64)
    }
}

/// Each step waits for its slowest thread, and one that shares its core runs half of the time.
fn crowding(slowdowns: &Slowdowns, (threads, full): (u32, u32)) -> f64 {
    let (threads, free) = (f64::from(threads), f64::from(full.max(1)) / slowdowns[Resource::Cores as usize].max(1.0));
    let too_few = (threads - free).clamp(0.0, 1.0);
    (threads / free).max(1.0 / (1.0 - too_few / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> SimProfile {
        let point = |bytes, rate_gbps| LinkPoint { bytes, rate_gbps };
        SimProfile {
            name: "test".into(),
            memory_bytes: 0,
            context_bytes: 0,
            pinned_limit_bytes: 0,
            link: vec![point(1_000, 1.0), point(100_000, 5.0)],
            pageable_factor: 0.5,
            submit: Nanos(0),
            copy_start: Nanos(7),
            to_gpu: Nanos(0),
            to_cpu: Nanos(0),
        }
    }

    #[test]
    fn copies_follow_the_curve_and_its_ends() {
        use SourceMemory::{Pageable, Pinned};
        let cases = [
            (500, Pinned, 507),
            (1_000, Pinned, 1_007),
            (10_000, Pinned, 3_340), // half way on the logarithmic scale: 3 GB/s
            (100_000, Pinned, 20_007),
            (1_000_000, Pinned, 200_007),
            (1_000_000, Pageable, 400_007),
            (0, Pinned, 7),
        ];
        for (bytes, memory, nanos) in cases {
            assert_eq!(profile().copy_time(bytes, memory), Nanos(nanos), "{bytes}");
        }
    }

    #[test]
    fn load_stretches_the_part_of_the_work_that_it_meets() {
        let step = |at, resource, slowdown| LoadStep { at: Nanos(at), resource, slowdown };
        let script = LoadScript::new(vec![
            step(200, Resource::Gpu, 1.0),
            step(100, Resource::Gpu, 4.0),
            step(0, Resource::Link, f64::NAN),
        ]);
        let cases = [
            (Resource::Gpu, 0, 50, 50),
            (Resource::Gpu, 0, 100, 100),
            (Resource::Gpu, 90, 20, 140),  // 10 before, 10 at a quarter of the speed
            (Resource::Gpu, 100, 25, 200), // exactly the loaded span
            (Resource::Gpu, 100, 35, 210),
            (Resource::Gpu, 0, 200, 275),
            (Resource::Gpu, 300, 10, 310),
            (Resource::Cpu, 100, 10, 110),
            (Resource::Link, 100, 10, 110),
        ];
        for (resource, start, work, end) in cases {
            assert_eq!(script.end_of(resource, Nanos(start), Nanos(work)), Nanos(end), "{resource:?} {start} {work}");
        }
    }

    #[test]
    fn cores_that_others_take_slow_down_teams_larger_than_the_rest() {
        let step = |at, resource, slowdown| LoadStep { at: Nanos(at), resource, slowdown };
        let script = LoadScript::new(vec![step(100, Resource::Cores, 4.0)]);
        script.add([step(1000, Resource::Cores, 1.0), step(500, Resource::Cpu, 3.0)]);
        // Threads of eight.
        let cases = [
            (8, 0, 50, 50),
            (8, 90, 20, 140), // 10 before, 10 at a quarter of the speed
            (4, 90, 20, 120),
            (3, 90, 20, 120), // one core too few
            (2, 90, 20, 110), // as many threads as cores are left
            (2, 500, 10, 530),
            (8, 500, 10, 620),
            (8, 1000, 10, 1030),
        ];
        for (threads, start, work, end) in cases {
            let found = script.end_of_team((threads, 8), Nanos(start), Nanos(work));
            assert_eq!(found, Nanos(end), "{threads} {start} {work}");
        }
        assert_eq!((script.crowding((4, 8), Nanos(100)), script.crowding((4, 8), Nanos(99))), (2.0, 1.0));
        assert_eq!((script.cores_left(Nanos(999)), script.cores_left(Nanos(1000))), (0.25, 1.0));
    }
}
