//! Figures of a run under load: time of a token by phase and policy, its rise, and by how much load-awareness cuts it.
//! Pure. Not here: drawing (`draw.rs`).

use super::{Pass, Point, Policy, Timeline, every};
use crate::cli::residence;
use crate::quantiles::Quantiles;
use std::fmt::Write;

/// A phase under both policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its number.
    pub phase: usize,
    /// Times under the fixed schedule, and load-aware.
    pub times: [Quantiles; 2],
    /// For a phase with load: how much longer a token takes than without, by policy, in microseconds of the mean; and
    /// the cut of that rise, of means and of medians, as a share. `None` where the fixed plan does not get slower.
    pub rise: Option<Rise>,
}

/// What load costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rise {
    /// By policy: microseconds of the mean.
    pub mean_us: [f64; 2],
    /// Share of the fixed plan's rise that is gone, by means.
    pub cut: f64,
    /// The same by medians.
    pub median_cut: f64,
}

/// The times of a pass in one phase, or in all phases without load.
fn times(pass: &Pass, takes: impl Fn(&Point) -> bool) -> Quantiles {
    Quantiles::of(pass.points.iter().filter(|point| takes(point)).map(|point| point.took_us))
}

/// One row a phase.
pub fn rows(timeline: &Timeline) -> Vec<Row> {
    let Timeline { phases, passes, .. } = timeline;
    let of = |policy: Policy, takes: &dyn Fn(&Point) -> bool| {
        let pass = passes.iter().find(|pass| pass.policy == policy);
        pass.map_or_else(Quantiles::default, |pass| times(pass, takes))
    };
    let both = |takes: &dyn Fn(&Point) -> bool| [Policy::Fixed, Policy::LoadAware].map(|policy| of(policy, takes));
    let calm = both(&|point| phases[point.phase].load.is_none());
    let row = |phase: usize| {
        let times = both(&|point| point.phase == phase);
        let rise = (!phases[phase].load.is_none()).then(|| rise(&times, &calm)).flatten();
        Row { phase, times, rise }
    };
    (0..phases.len()).map(row).collect()
}

fn rise(times: &[Quantiles; 2], calm: &[Quantiles; 2]) -> Option<Rise> {
    let of = |value: fn(&Quantiles) -> f64| [0, 1].map(|policy| value(&times[policy]) - value(&calm[policy]));
    let cut = |[fixed, aware]: [f64; 2]| (fixed > 0.0).then(|| (fixed - aware) / fixed);
    let (mean_us, median_us) = (of(|times| times.mean_us), of(|times| times.p50_us));
    Some(Rise { mean_us, cut: cut(mean_us)?, median_cut: cut(median_us)? })
}

/// The table and sentences for people.
pub fn text(timeline: &Timeline) -> String {
    let mut text = format!("{}\n", timeline.title);
    let _ = writeln!(
        text,
        "| phase | fixed ms | load-aware ms | rise fixed | rise load-aware | cut of the rise | of medians |\n\
         | --- | --- | --- | --- | --- | --- | --- |"
    );
    for Row { phase, times, rise } in rows(timeline) {
        let ms = |us: f64| us / 1e3;
        let rise = rise.map_or_else(
            || " | | | ".to_owned(),
            |Rise { mean_us: [fixed, aware], cut, median_cut }| {
                let percent = |share: f64| format!("{:.0} %", 100.0 * share);
                format!("{:.2} | {:.2} | {} | {}", ms(fixed), ms(aware), percent(cut), percent(median_cut))
            },
        );
        let [fixed, aware] = times.map(|times| ms(times.mean_us));
        let _ = writeln!(text, "| {} | {fixed:.2} | {aware:.2} | {rise} |", timeline.phases[phase].name);
    }
    for row in rows(timeline) {
        text.push_str(&cores_kept(timeline, &row));
    }
    for pass in &timeline.passes {
        let _ = writeln!(text, "{}: {}; {}", pass.policy.name(), times(pass, |_| true), residence(pass, timeline));
    }
    if let Some(us) = timeline.choice_us.filter(|_| !timeline.switches.is_empty()) {
        let _ = writeln!(text, "choosing a schedule took at most {us:.0} us between two rounds");
    }
    for switch in &timeline.switches {
        let _ = writeln!(text, "  {switch}");
    }
    text.push_str(&every::text(&timeline.tried, &timeline.phases, &timeline.schedules));
    text
}

/// What decoding keeps of its speed when others take cores, against its share of the cores left: 1 would be all.
fn cores_kept(timeline: &Timeline, row: &Row) -> String {
    let taken = timeline.phases[row.phase].load.cpu;
    let Some(rise) = row.rise.filter(|_| taken > 0.0) else { return String::new() };
    let kept = |policy: usize| {
        let loaded_us = row.times[policy].mean_us;
        100.0 * (loaded_us - rise.mean_us[policy]) / loaded_us / (1.0 - taken)
    };
    format!(
        "with {:.0} % of the cores left decoding keeps {:.0} % of its share of them load-aware, {:.0} % fixed\n",
        100.0 * (1.0 - taken),
        kept(1),
        kept(0)
    )
}

/// Which share of the tokens each schedule made.
fn residence(pass: &Pass, timeline: &Timeline) -> String {
    let mut tokens = vec![0; timeline.schedules.len()];
    for point in &pass.points {
        tokens[point.schedule] += 1;
    }
    residence::text(&tokens, &timeline.schedules)
}

/// One line a token, then one a schedule and load if every schedule was tried.
pub fn csv(timeline: &Timeline) -> String {
    let mut text = "plan,phase,load,time_s,token_ms,schedule,cpu_threads,streamed_items\n".to_owned();
    for pass in &timeline.passes {
        for point in &pass.points {
            let (threads, streamed) = timeline.schedules.get(point.schedule).copied().unwrap_or_default();
            let Point { phase, at_s, took_us, schedule } = point;
            let (plan, load, ms) = (pass.policy.name(), &timeline.phases[*phase].name, took_us / 1e3);
            let _ = writeln!(text, "{plan},{phase},\"{load}\",{at_s:.6},{ms:.4},{schedule},{threads},{streamed}");
        }
    }
    text.push_str(&every::csv(&timeline.tried, &timeline.phases, &timeline.schedules));
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cli::load::LoadSpec;

    /// Tokens of 10 ms without load; under it 30 ms, or 15 ms after one of 30.
    pub fn timeline() -> Timeline {
        let phases = LoadSpec::parse("cpu=50").expect("a load").phases();
        let points = |policy: Policy| {
            let point = |index: usize| {
                let phase = index / 10;
                let took_us = match (phase, policy) {
                    (1, Policy::LoadAware) if index > 10 => 15e3,
                    (1, _) => 30e3,
                    _ => 10e3,
                };
                Point { phase, at_s: index as f64, took_us, schedule: usize::from(took_us == 15e3) }
            };
            (0..30).map(point).collect()
        };
        let passes = [Policy::Fixed, Policy::LoadAware].map(|policy| Pass { policy, points: points(policy) });
        Timeline {
            title: "a model on a machine".to_owned(),
            phases,
            phase_s: 10.0,
            passes: passes.to_vec(),
            schedules: vec![(16, 3), (6, 0)],
            switches: vec!["at 7 tokens: 0 -> 1".to_owned()],
            choice_us: Some(80.0),
            tried: Vec::new(),
        }
    }

    #[test]
    fn the_cut_is_of_the_rise() {
        let rows = rows(&timeline());
        assert_eq!((rows[0].rise, rows[2].rise), (None, None));
        let rise = rows[1].rise.expect("a phase with load");
        // Means: fixed 10 -> 30, load-aware 10 -> 16.5.
        assert_eq!(rise.mean_us, [20e3, 6.5e3]);
        assert!((rise.cut - 13.5 / 20.0).abs() < 1e-12 && (rise.median_cut - 0.75).abs() < 1e-12);
        let text = text(&timeline());
        assert!(text.contains("| CPU 50 % | 30.00 | 16.50 | 20.00 | 6.50 | 68 % | 75 % |"), "{text}");
        // 10 ms of 16.5 ms is 61 % of the speed, with half of the cores.
        assert!(text.contains("with 50 % of the cores left decoding keeps 121 % of its share"), "{text}");
        assert!(text.contains("30 % of tokens by schedule 1 (6 threads, 0 items streamed)"), "{text}");
    }

    #[test]
    fn every_token_is_a_line() {
        let csv = csv(&timeline());
        assert_eq!(csv.lines().count(), 61);
        assert!(csv.contains("load-aware,1,\"CPU 50 %\",11.000000,15.0000,1,6,0"), "{csv}");
    }
}
