//! How an executor follows its plan: which schedule runs, what made it change, and what a person may ask of that.
//! Not here: the choice (`hybrid/select.rs`), running (`run.rs`).

use super::failure::lock;
use super::run::Executor;
use crate::hybrid::adapt::{Contention, Switch};
use crate::hybrid::select::Selector;
use device::clock::Nanos;
use device::evidence::Watch;
use plan_format::artifact::Plan;
use std::time::Duration;

impl Executor {
    /// A CPU on its own takes its teams from the plan's schedules from now on, and changes them under load.
    pub fn follow(&mut self, plan: &Plan, pinned_schedule: Option<usize>) {
        if self.hybrid.is_none() && !plan.schedules.is_empty() {
            self.selector = Some(Selector::new(plan, pinned_schedule, Contention::Felt));
        }
    }

    /// Switches are noted with what the system says of the machine from now on. A CPU on its own with one schedule, and
    /// a GPU with one, have nothing to note.
    pub fn watch(&mut self, watch: Watch) {
        if let Some(selector) = self.selector_mut().filter(|selector| selector.is_adaptive()) {
            selector.watch(watch);
        }
    }

    fn selector(&self) -> Option<&Selector> {
        self.hybrid.as_ref().map(|hybrid| &hybrid.selector).or(self.selector.as_ref())
    }

    fn selector_mut(&mut self) -> Option<&mut Selector> {
        self.hybrid.as_mut().map(|hybrid| &mut hybrid.selector).or(self.selector.as_mut())
    }

    /// Switches of schedules under load so far, and measured over expected times of CPU, GPU and link.
    pub fn switches(&self) -> (Vec<Switch>, [f64; 3]) {
        self.selector().map_or((Vec::new(), [1.0; 3]), Selector::switches)
    }

    /// From now on rounds of this schedule's phase take it; `None` = they choose again.
    pub fn pin_schedule(&mut self, schedule: Option<usize>) {
        if let Some(selector) = self.selector_mut() {
            selector.pin(schedule);
        }
    }

    /// Schedules of decoding, by number. Empty if no plan is followed.
    pub fn decode_schedules(&self) -> Vec<usize> {
        self.selector().map_or(Vec::new(), Selector::decoding)
    }

    /// The schedule of decoding at no load.
    pub fn unloaded_schedule(&self, context_tokens: u32) -> Option<usize> {
        self.selector()?.unloaded(context_tokens)
    }

    /// The longest that choosing a schedule has taken between two rounds, by this machine's clock.
    pub fn slowest_choice(&self) -> Duration {
        self.selector().map_or(Duration::ZERO, Selector::slowest_choice)
    }

    /// Tokens that each schedule has decoded.
    pub fn residence(&self) -> Vec<u64> {
        self.selector().map_or(Vec::new(), Selector::residence)
    }

    /// What the last switch to another schedule took.
    pub fn switch_took(&self) -> Nanos {
        self.hybrid.as_ref().map_or(self.switch_took, |hybrid| lock(&hybrid.driver).switch_took())
    }

    /// Schedule of the last round, by number.
    pub fn schedule(&self) -> usize {
        self.hybrid.as_ref().map_or(self.schedule, |hybrid| lock(&hybrid.driver).schedule())
    }

    /// Adds what a person should know.
    pub fn add_notes<'a>(&mut self, notes: impl IntoIterator<Item = &'a str>) {
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.notes.extend(notes.into_iter().map(str::to_owned));
        }
    }
}
