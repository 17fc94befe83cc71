//! Which schedule each round takes: the plan's table, and, where there is something to choose, what the load asks for.
//! With and without a GPU. Next: `driver.rs`.

use super::adapt::{Adaptive, Contention, Cores, Sample, Switch};
use super::choose::{Table, context_of};
use crate::exec::Round;
use crate::exec::failure::lock;
use device::clock::Nanos;
use device::evidence::Watch;
use device::team::Pressure;
use plan_format::artifact::Plan;
use plan_format::costs::CaseCosts;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// See the module text.
pub struct Selector {
    table: Table,
    /// Who changes schedules under load; `None` = there is nothing to choose.
    adaptive: Option<Mutex<Adaptive>>,
    /// Whether the load chose the round's schedule, and the plan's times are for rounds as large: only such rounds are
    /// learnt from.
    is_led: AtomicBool,
    /// Rounds of one token, by schedule.
    tokens: Vec<AtomicU64>,
    /// What the system says of the machine, on a real one.
    watch: Option<Watch>,
    /// The longest that choosing has taken between two rounds, in nanoseconds of this machine.
    slowest_choice_ns: AtomicU64,
}

impl Selector {
    /// For a plan. With `pinned`, rounds of that schedule's phase always take it.
    pub fn new(plan: &Plan, pinned: Option<usize>, contention: Contention) -> Self {
        let tokens = plan.schedules.iter().map(|_| AtomicU64::new(0)).collect();
        let adaptive = Adaptive::new(plan, contention).map(Mutex::new);
        let (table, is_led) = (Table::new(plan, pinned), AtomicBool::new(false));
        Selector { table, adaptive, is_led, tokens, watch: None, slowest_choice_ns: AtomicU64::new(0) }
    }

    /// From now on switches are noted with what the system says, and its limits count.
    pub fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Whether the load matters.
    pub fn is_adaptive(&self) -> bool {
        self.adaptive.is_some()
    }

    fn adaptive(&self) -> Option<MutexGuard<'_, Adaptive>> {
        self.adaptive.as_ref().map(lock)
    }

    /// The schedule of a round that begins at `now`.
    pub fn choose(&self, round: &Round, now: Nanos) -> usize {
        let base = self.table.choose(round);
        let adaptive = self.adaptive().filter(|_| self.table.pinned(round).is_none());
        self.is_led.store(adaptive.is_some() && self.table.is_whole(round), Ordering::Relaxed);
        let schedule = adaptive.map_or(base, |mut adaptive| self.lead(&mut adaptive, base, context_of(round), now));
        if round.tokens.len() == 1 {
            self.tokens[schedule].fetch_add(1, Ordering::Relaxed);
        }
        schedule
    }

    fn lead(&self, adaptive: &mut Adaptive, base: usize, context_tokens: u32, now: Nanos) -> usize {
        let (switches, start) = (adaptive.log().len(), Instant::now());
        let schedule = adaptive.choose(base, context_tokens, now);
        let took_ns = start.elapsed().as_nanos() as u64;
        self.slowest_choice_ns.fetch_max(took_ns, Ordering::Relaxed);
        if adaptive.log().len() > switches
            && let (Some(watch), Some(switch)) = (&self.watch, adaptive.last_switch())
        {
            switch.evidence = watch.latest().to_string();
        }
        schedule
    }

    /// Takes in what the round took, and what others took of the team's cores. Whether the next rounds should be timed.
    pub fn observe(&self, sample: Sample, pressure: Pressure) -> bool {
        let adaptive = self.adaptive().filter(|_| self.is_led.load(Ordering::Relaxed));
        let Some(mut adaptive) = adaptive else { return false };
        let limit = self.watch.as_ref().and_then(|watch| watch.latest().host.limit_cores).unwrap_or(f64::INFINITY);
        let cores = pressure
            .free_cores
            .map(|free| Cores { free: f64::from(free).min(limit), lost_share: f64::from(pressure.worst_share) });
        adaptive.observe(&Sample { cores, ..sample });
        adaptive.is_curious()
    }

    /// Expected times of a schedule's items at the round's context: all but the CPU's, and the CPU's.
    pub fn expected(&self, schedule: usize, round: &Round) -> (Option<&CaseCosts>, &[f32]) {
        self.table.expected(schedule, round)
    }

    /// From now on rounds of this schedule's phase take it; `None` = they choose again.
    pub fn pin(&mut self, schedule: Option<usize>) {
        self.table.pin(schedule);
    }

    /// Schedules of decoding.
    pub fn decoding(&self) -> Vec<usize> {
        self.table.decoding()
    }

    /// The schedule of decoding at no load.
    pub fn unloaded(&self, context_tokens: u32) -> Option<usize> {
        self.table.unloaded(context_tokens)
    }

    /// CPU threads of a schedule.
    pub fn threads(&self, schedule: usize) -> usize {
        self.table.threads(schedule)
    }

    /// The largest team of any schedule.
    pub fn threads_most(&self) -> usize {
        (0..self.tokens.len()).map(|schedule| self.threads(schedule)).max().unwrap_or(1)
    }

    /// The longest that choosing has taken between two rounds.
    pub fn slowest_choice(&self) -> Duration {
        Duration::from_nanos(self.slowest_choice_ns.load(Ordering::Relaxed))
    }

    /// Tokens that each schedule has decoded.
    pub fn residence(&self) -> Vec<u64> {
        self.tokens.iter().map(|tokens| tokens.load(Ordering::Relaxed)).collect()
    }

    /// Switches of schedules so far, and measured over expected times of CPU, GPU and link.
    pub fn switches(&self) -> (Vec<Switch>, [f64; 3]) {
        self.adaptive().map_or((Vec::new(), [1.0; 3]), |adaptive| (adaptive.log().to_vec(), adaptive.ratios()))
    }
}
