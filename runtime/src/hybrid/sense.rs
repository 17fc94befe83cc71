//! What rounds tell of the machine: measured over expected times per resource, and the cores that others leave. Pure.
//!
//! Of each the median of the last few samples counts: one odd round changes nothing, and a real change shows as a whole
//! after four. Expected times are those of the schedule that ran, so 1 means "as the plan says". What a schedule leaves
//! idle keeps its last value while probes sense it, and drifts back to 1 otherwise. Next: `adapt.rs`.

/// A resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The host's cores.
    Cpu,
    /// The GPU's multiprocessors.
    Gpu,
    /// Transfers of weights.
    Link,
}

impl Resource {
    /// All, in the order of arrays.
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Gpu, Resource::Link];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "CPU",
            Resource::Gpu => "GPU",
            Resource::Link => "link",
        }
    }
}

/// What is known of cores beside times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cores {
    /// Cores that a team of any size would have for itself.
    pub free: f64,
    /// The part of the time that it wanted which the worst worker of the present team did not get, 0 to 1.
    pub lost_share: f64,
}

/// Times that a round took of a resource, and what the plan expects of the same work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// By [`Resource`]: measured and expected microseconds; both 0 for a resource that was not used or not timed.
    pub spent_us: [(f64, f64); 3],
    /// Cores, if anything is known.
    pub cores: Option<Cores>,
}

impl Sample {
    /// Adds work.
    pub fn add(&mut self, resource: Resource, measured_us: f64, expected_us: f64) {
        let (measured, expected) = &mut self.spent_us[resource as usize];
        *measured += measured_us;
        *expected += expected_us;
    }
}

/// Samples that count.
const KEPT: usize = 7;
/// Rounds without any sign of a resource after which its ratio drifts.
const UNSENSED_MOST: u32 = 64;
/// What a round leaves of the deviation of a resource that nothing senses.
const DRIFT: f64 = 0.97;

/// The last few values of something.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    values: [f64; KEPT],
    next: usize,
}

impl Window {
    /// As if it had always been so.
    pub fn full_of(value: f64) -> Self {
        Window { values: [value; KEPT], next: 0 }
    }

    /// Adds a value in place of the oldest.
    pub fn add(&mut self, value: f64) {
        self.values[self.next] = value;
        self.next = (self.next + 1) % KEPT;
    }

    /// The median.
    pub fn median(&self) -> f64 {
        let mut sorted = self.values;
        sorted.sort_by(f64::total_cmp);
        sorted[KEPT / 2]
    }

    fn drift(&mut self) {
        self.values.iter_mut().for_each(|value| *value = 1.0 + DRIFT * (*value - 1.0));
    }
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct Senses {
    windows: [Window; 3],
    unsensed_rounds: [u32; 3],
    free: Option<Window>,
    lost_share: Window,
    /// By resource: how many of the last samples in a row were far from the median.
    odd: [u32; 3],
}

impl Default for Senses {
    fn default() -> Self {
        let (one, none) = (Window::full_of(1.0), Window::full_of(0.0));
        Senses { windows: [one; 3], unsensed_rounds: [0; 3], free: None, lost_share: none, odd: [0; 3] }
    }
}

/// Rounds without a sample after which the last one says nothing of now.
const ODD_ROUNDS: u32 = 4;
/// A sample that is this far from the median is odd: a change may have begun.
const ODD: f64 = 0.15;

/// How far two ratios are apart, 0 = equal, whichever is larger.
pub fn apart(a: f64, b: f64) -> f64 {
    (a / b).max(b / a) - 1.0
}

impl Senses {
    /// Takes in a round. `stretch`: what the running schedule's own contention makes of the expected times. Work that
    /// is expected to take less than `least_us`, and does, says nothing: wake-ups and barriers take as long, whatever
    /// the load.
    pub fn observe(&mut self, sample: &Sample, stretch: [f64; 3], least_us: [f64; 3]) {
        for (index, (measured, expected)) in sample.spent_us.into_iter().enumerate() {
            let window = &mut self.windows[index];
            if measured > 0.0 && expected > 0.0 && measured.max(expected) >= least_us[index] {
                let ratio = (measured / (expected * stretch[index])).clamp(0.05, 100.0);
                let is_odd = apart(ratio, window.median()) >= ODD;
                self.odd[index] = if is_odd { self.odd[index] + 1 } else { 0 };
                window.add(ratio);
                self.unsensed_rounds[index] = 0;
            } else {
                self.unsensed_rounds[index] = self.unsensed_rounds[index].saturating_add(1);
                if self.unsensed_rounds[index] > ODD_ROUNDS {
                    self.odd[index] = 0;
                }
                if self.unsensed_rounds[index] > UNSENSED_MOST {
                    window.drift();
                }
            }
        }
        if let Some(Cores { free, lost_share }) = sample.cores {
            self.free.get_or_insert(Window::full_of(free)).add(free);
            self.lost_share.add(lost_share.clamp(0.0, 0.95));
        }
    }

    /// Measured over expected times of CPU, GPU and link, for the schedule that runs.
    pub fn ratios(&self) -> [f64; 3] {
        self.windows.each_ref().map(Window::median)
    }

    /// Cores that a team of any size would have; infinite while nothing is known.
    pub fn free_cores(&self) -> f64 {
        self.free.as_ref().map_or(f64::INFINITY, Window::median)
    }

    /// How many times slower the present team is because it shares cores; what is left of the CPU's ratio is common to
    /// teams of all sizes.
    pub fn crowding(&self) -> f64 {
        1.0 / (1.0 - self.lost_share.median())
    }

    /// Whether the last sample of some resource was unlike those before.
    pub fn is_odd(&self) -> bool {
        self.odd.iter().any(|&rounds| rounds > 0)
    }

    /// Whether it is worth while to time all of the next rounds. The CPU is timed anyway, and now and then a round of
    /// its is late for no reason.
    pub fn is_curious(&self) -> bool {
        let [cpu, gpu, link] = self.odd;
        cpu > 1 || gpu > 0 || link > 0
    }

    /// Another team runs from now on, which is expected to be `cpu` times slower than planned, `crowding` times of that
    /// because it shares cores: what the one before measured says nothing of it.
    pub fn another_team(&mut self, cpu: f64, crowding: f64) {
        self.windows[Resource::Cpu as usize] = Window::full_of(cpu);
        self.odd[Resource::Cpu as usize] = 0;
        self.lost_share = Window::full_of(1.0 - 1.0 / crowding.max(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ratio: f64) -> Sample {
        let mut sample = Sample::default();
        sample.add(Resource::Link, 10.0 * ratio, 10.0);
        sample
    }

    #[test]
    fn a_change_shows_as_a_whole_after_four_rounds_and_an_odd_round_not_at_all() {
        let mut senses = Senses::default();
        let mut seen = |ratio| {
            senses.observe(&link(ratio), [1.0; 3], [0.0; 3]);
            (senses.ratios()[2], senses.is_odd())
        };
        assert_eq!(seen(1.05), (1.0, false));
        assert_eq!(seen(9.0), (1.0, true));
        assert_eq!(seen(1.0), (1.0, false));
        (0..7).for_each(|_| _ = seen(1.0));
        assert_eq!([seen(3.0), seen(3.0), seen(3.0), seen(3.0)].map(|(ratio, _)| ratio), [1.0, 1.0, 1.0, 3.0]);
    }

    #[test]
    fn what_a_schedule_slows_down_by_itself_is_no_load() {
        let mut senses = Senses::default();
        (0..9).for_each(|_| senses.observe(&link(1.3), [1.0, 1.0, 1.3], [0.0; 3]));
        assert!((senses.ratios()[2] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn work_too_small_to_tell_says_nothing() {
        let mut senses = Senses::default();
        (0..9).for_each(|_| senses.observe(&link(30.0), [1.0; 3], [0.0, 0.0, 301.0]));
        assert_eq!((senses.ratios()[2], senses.is_curious()), (1.0, false));
        (0..9).for_each(|_| senses.observe(&link(30.0), [1.0; 3], [0.0, 0.0, 300.0]));
        assert_eq!(senses.ratios()[2], 30.0);
    }

    #[test]
    fn a_ratio_that_nothing_senses_drifts_back_and_one_that_probes_sense_stays() {
        let mut senses = Senses::default();
        (0..9).for_each(|_| senses.observe(&link(4.0), [1.0; 3], [0.0; 3]));
        let mut probed = senses.clone();
        for round in 0..400 {
            senses.observe(&Sample::default(), [1.0; 3], [0.0; 3]);
            probed.observe(&if round % 16 == 0 { link(4.0) } else { Sample::default() }, [1.0; 3], [0.0; 3]);
        }
        assert!(senses.ratios()[2] < 1.01, "{:?}", senses.ratios());
        assert_eq!(probed.ratios()[2], 4.0);
    }

    #[test]
    fn a_new_team_is_judged_anew() {
        let mut senses = Senses::default();
        let mut sample = Sample { cores: Some(Cores { free: 6.0, lost_share: 0.5 }), ..Sample::default() };
        sample.add(Resource::Cpu, 30.0, 10.0);
        (0..9).for_each(|_| senses.observe(&sample, [1.0; 3], [0.0; 3]));
        assert_eq!((senses.ratios()[0], senses.crowding(), senses.free_cores()), (3.0, 2.0, 6.0));
        senses.another_team(1.5, 1.0);
        assert_eq!((senses.ratios()[0], senses.crowding(), senses.free_cores()), (1.5, 1.0, 6.0));
    }
}
