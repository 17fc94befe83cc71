//! Which share of a run's tokens each schedule made, in words. Not here: why schedules change (`hybrid/adapt.rs`).

use crate::engine::Engine;
use crate::quantiles::Quantiles;
use shared_cli::output::say;

/// CPU threads and streamed items of each schedule of a plan.
pub fn schedules(engine: &Engine) -> Vec<(u16, usize)> {
    let schedules = engine.plan().schedules.iter();
    schedules.map(|schedule| (schedule.cpu_threads, schedule.promotions.len())).collect()
}

/// Shares of tokens by schedule, the largest first; empty without tokens.
pub fn text(tokens: &[u64], schedules: &[(u16, usize)]) -> String {
    let all: u64 = tokens.iter().sum();
    let mut used: Vec<(usize, u64)> = tokens.iter().copied().enumerate().filter(|(_, tokens)| *tokens > 0).collect();
    used.sort_by_key(|&(schedule, tokens)| (std::cmp::Reverse(tokens), schedule));
    let share = |&(schedule, tokens): &(usize, u64)| {
        let (threads, streamed) = schedules.get(schedule).copied().unwrap_or_default();
        let percent = 100.0 * tokens as f64 / all as f64;
        format!("{percent:.0} % of tokens by schedule {schedule} ({threads} threads, {streamed} items streamed)")
    };
    used.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// Tokens of each schedule since `before`.
pub fn since(before: &[u64], now: &[u64]) -> Vec<u64> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    now.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect()
}

/// Says how long tokens took, by which schedules, and why those changed.
pub fn say_of(engine: &mut Engine, times: &Quantiles) {
    if times.count == 0 {
        return;
    }
    let tokens = engine.executor().residence();
    let residence = text(&tokens, &schedules(engine));
    let residence = if residence.is_empty() { String::new() } else { format!("; {residence}") };
    say(format_args!("a token: {times}{residence}"));
    engine.executor().switches().0.iter().for_each(|switch| say(format_args!("  {switch}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_ran_since() {
        let tokens = since(&[5, 5], &[5, 8, 1]);
        assert_eq!(tokens, [0, 3, 1]);
        assert_eq!(
            text(&tokens, &[(1, 1), (6, 0), (16, 3)]),
            "75 % of tokens by schedule 1 (6 threads, 0 items streamed), 25 % of tokens by schedule 2 (16 threads, 3 \
             items streamed)"
        );
        assert_eq!(text(&[0, 0], &[]), "");
    }
}
