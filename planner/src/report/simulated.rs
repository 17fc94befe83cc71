//! A simulation in words and as a page: what a plan does under a load, and what it would do unadapted.

use super::html::Html;
use super::page::round as round_section;
use super::palette::phase_name;
use super::placement::swatch;
use super::regimes::{ms, streamed_mib};
use super::svg::number;
use super::timeline;
use super::view::{View, tokens_per_s};
use crate::place::held;
use crate::simulate::round::{Outcome, RoundError};
use plan_format::artifact::Plan;
use plan_format::costs::Load;
use plan_format::schedule::Phase;
use std::fmt::Write;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// How busy the machine is.
    pub load: Load,
    /// The load in words, and what else differs from the plan as compiled.
    pub conditions: Vec<String>,
    /// Cached tokens of decode rounds.
    pub context_tokens: u32,
}

impl<'a> Simulation<'a> {
    fn view(&self) -> Result<View<'a>, RoundError> {
        let view = View::new(self.plan)?;
        Ok(View { load: self.load, context_tokens: self.context_tokens, ..view })
    }

    /// Decode and the largest prefill in words.
    ///
    /// # Errors
    /// A plan without expected times.
    pub fn text(&self) -> Result<String, RoundError> {
        let view = self.view()?;
        let mut text = format!("{}\n", view.title());
        for condition in &self.conditions {
            let _ = writeln!(text, "{condition}");
        }
        for phase in view.phases() {
            text.push_str(&phase_text(&view, phase, &view.outcome(phase)?));
        }
        Ok(text)
    }

    /// The same with timelines, as a page.
    ///
    /// # Errors
    /// A plan without expected times.
    pub fn page(&self, name: &str) -> Result<String, RoundError> {
        let view = self.view()?;
        let mut html = Html::new(&format!("Simulation of {name}"), &view.title());
        html.list(&self.conditions);
        html.legend(timeline::legend(&view).into_iter().map(|(color, name)| (swatch(color), name)));
        for phase in view.phases() {
            html.section(&phase_name(phase));
            let text = phase_text(&view, phase, &view.outcome(phase)?);
            html.list(&text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>());
            round_section(&mut html, &view, phase);
        }
        Ok(html.finish())
    }

    /// A phase's rounds as a Chrome trace.
    ///
    /// # Errors
    /// A plan without expected times or without such rounds.
    pub fn trace(&self, phase: Phase) -> Result<String, RoundError> {
        let view = self.view()?;
        let outcome = view.outcome(phase)?;
        let (played, _) = view.round(phase).timeline(outcome.schedule).ok_or(RoundError::NoTimes)?;
        let names: Vec<String> = view.items().iter().map(|item| item.name.clone()).collect();
        Ok(played.to_chrome_trace(&names))
    }

    /// Decode, or the plan's largest prefill.
    ///
    /// # Errors
    /// A plan without such rounds.
    pub fn phase(&self, kind: RoundKind) -> Result<Phase, RoundError> {
        let view = self.view()?;
        let wanted = |phase: &Phase| (*phase == Phase::Decode) == (kind == RoundKind::Decode);
        let known = || view.phases().into_iter().map(phase_name).collect::<Vec<_>>().join(", ");
        view.phases().into_iter().find(wanted).ok_or_else(|| RoundError::NoPhase { known: known() })
    }
}

/// Decode or prefill, whatever the sizes of the plan's rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundKind {
    /// One token.
    Decode,
    /// The largest prefill.
    Prefill,
}

fn phase_text(view: &View<'_>, phase: Phase, outcome: &Outcome) -> String {
    let round = view.round(phase);
    let schedule = &view.plan.schedules[outcome.schedule.index()];
    let speed = number(tokens_per_s(&round, outcome.round_us));
    let mut text = format!(
        "{} at {} cached: {}, {speed} tokens/s\n",
        phase_name(phase),
        outcome.context_tokens,
        ms(outcome.round_us)
    );
    let streamed = match schedule.promotions.len() {
        0 => "nothing streamed".to_owned(),
        items => format!("{items} items streamed, {} MiB a round", number(streamed_mib(view, schedule))),
    };
    let _ = writeln!(text, "  schedule S{}: {} CPU threads, {streamed}", outcome.schedule.0, schedule.cpu_threads);
    if !phase.is_prefill() {
        held::text(&view.plan.placement.held).iter().for_each(|held| text.push_str(&format!("  {held}\n")));
    }
    if outcome.unadapted_us > outcome.round_us * 1.0005 {
        let factor = number(outcome.unadapted_us / outcome.round_us);
        let _ = writeln!(text, "  the unloaded schedule would take {} ({factor}x)", ms(outcome.unadapted_us));
    }
    let busy = &outcome.busy;
    let _ = writeln!(
        text,
        "  work: CPU {}, GPU {}, link {}; no overlap is faster than {}",
        ms(busy.cpu_us),
        ms(busy.gpu_us),
        ms(busy.link_us),
        ms(busy.most_us())
    );
    if let Some(floors) = &outcome.floors {
        let _ = writeln!(
            text,
            "  floors without load: memory {}, one processor at a time {}",
            ms(floors.floor_us),
            ms(floors.serial_floor_us)
        );
    }
    text
}
