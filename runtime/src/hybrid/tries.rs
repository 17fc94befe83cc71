//! What was measured of schedules and teams under the present load, since the plan knows the machine without it only:
//! what is not forgotten when a schedule is left. Pure. Next: `conditions.rs`.

use super::conditions::{Conditions, FORGOTTEN, KnownTeam};
use super::sense::apart;

/// Schedules and teams that are remembered.
const REMEMBERED_MOST: usize = 8;
/// Rounds for which they are: contexts grow.
const ROUNDS_MOST: u64 = 500;

/// A schedule as it ran.
#[derive(Clone, Copy)]
struct Ran {
    schedule: usize,
    round_us: f64,
    round: u64,
}

/// See the module text.
pub struct Tries {
    /// The load, as the schedule sees it that ran when it was noted.
    load: Conditions,
    ran: Vec<Ran>,
    teams: Vec<KnownTeam>,
    /// Looks that followed a switch under this load.
    pub looks: u32,
}

impl Tries {
    /// Nothing is known yet.
    pub fn new(load: Conditions) -> Self {
        let (ran, teams) = (Vec::with_capacity(REMEMBERED_MOST), Vec::with_capacity(REMEMBERED_MOST));
        Tries { load, ran, teams, looks: 0 }
    }

    /// Another load: nothing that was measured before says anything.
    pub fn forget(&mut self, load: Conditions) {
        self.load = load;
        self.ran.clear();
        self.teams.clear();
        self.looks = 0;
    }

    /// Whether a schedule takes another time than it did, so that this is another load, seen in what is timed or not.
    pub fn is_outdated(&self, schedule: usize, round_us: f64, round: u64) -> bool {
        self.round_us(schedule, round).is_some_and(|noted_us| apart(noted_us, round_us) >= FORGOTTEN)
    }

    /// The same load, as the schedule sees it that runs now.
    pub fn is_seen_as(&mut self, load: Conditions) {
        self.load = load;
    }

    /// Whether this is another load.
    pub fn is_another(&self, load: &Conditions) -> bool {
        load.moved_since(&self.load).1 >= FORGOTTEN
    }

    /// A schedule takes `round_us` under this load.
    pub fn note(&mut self, schedule: usize, round_us: f64, round: u64) {
        self.ran.retain(|ran| ran.schedule != schedule);
        make_room(&mut self.ran);
        self.ran.push(Ran { schedule, round_us, round });
    }

    /// What a schedule took under this load.
    pub fn round_us(&self, schedule: usize, round: u64) -> Option<f64> {
        let is_it = |ran: &&Ran| ran.schedule == schedule && round - ran.round < ROUNDS_MOST;
        self.ran.iter().find(is_it).map(|ran| ran.round_us)
    }

    /// A team takes `ratio` times as long as planned, beside what shared cores explain.
    pub fn note_team(&mut self, threads: u16, ratio: f64, load: Conditions, round: u64) {
        self.teams.retain(|team| team.threads != threads);
        make_room(&mut self.teams);
        self.teams.push(KnownTeam { threads, ratio, load, round });
    }

    /// What was noted of a team.
    pub fn team(&self, threads: u16, conditions: &Conditions, round: u64) -> Option<f64> {
        self.teams.iter().find(|team| team.says(threads, round, conditions)).map(|team| team.ratio)
    }
}

fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == REMEMBERED_MOST {
        list.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(cpu: f64) -> Conditions {
        Conditions { ratios: [cpu, 1.0, 1.0], free_cores: 8.0, crowding: 1.0 }
    }

    #[test]
    fn what_was_measured_holds_until_the_load_is_another_or_long_ago() {
        let mut tries = Tries::new(load(1.0));
        tries.note(3, 50.0, 10);
        tries.note(3, 60.0, 20);
        tries.note_team(4, 1.5, load(1.0), 20);
        assert_eq!((tries.round_us(3, 519), tries.round_us(3, 520), tries.round_us(4, 20)), (Some(60.0), None, None));
        assert_eq!((tries.team(4, &load(1.0), 20), tries.team(5, &load(1.0), 20)), (Some(1.5), None));
        let outdated = [40.0, 50.0, 60.0, 77.0, 79.0].map(|us| tries.is_outdated(3, us, 20));
        assert_eq!((outdated, tries.is_outdated(4, 9.0, 20)), ([true, false, false, false, true], false));
        assert!(!tries.is_another(&load(1.29)) && tries.is_another(&load(1.31)));
        tries.forget(load(2.0));
        assert_eq!((tries.round_us(3, 20), tries.team(4, &load(1.0), 20)), (None, None));
        (0..20).for_each(|schedule| tries.note(schedule, 1.0, 0));
        assert_eq!((tries.ran.len(), tries.ran.capacity()), (REMEMBERED_MOST, REMEMBERED_MOST));
    }
}
