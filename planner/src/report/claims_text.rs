//! The arithmetic of `claims.rs` in words, and as a line of CSV. Next: `page.rs`.

use super::claims::{Claim, Comparison, Verdict};
use super::svg::number;

/// The phases of a comparison with their names.
pub fn phases(comparison: &Comparison) -> [(&'static str, &Claim); 2] {
    [("decode", &comparison.decode), ("prefill", &comparison.prefill)]
}

/// The workload as a whole: what the plan was made for, and which of its phases it may give up something of.
pub fn workload(comparison: &Comparison) -> String {
    let [base_us, plan_us] = comparison.workload_us;
    let seconds = |us: f64| number(us / 1e6);
    let mut text = format!(
        "The workload that was planned for takes {} s in whole layers and {} s with this plan: {}x.",
        seconds(base_us),
        seconds(plan_us),
        number(base_us / plan_us)
    );
    let [row, ..] = &comparison.rows;
    let decode_us = row.decode_us * f64::from(comparison.generate_tokens);
    for (name, claim) in phases(comparison) {
        if claim.reach.speedup < 0.995 && plan_us < base_us {
            let share = if name == "decode" { decode_us } else { base_us - decode_us } / base_us;
            text += &format!(
                " Its {name} is slower than in whole layers ({}x): there the workload spends {:.0} % of its time, and \
                 the GPU memory saves more in the rest. Another workload (--prompt, --generate) gives another plan.",
                number(claim.reach.speedup),
                100.0 * share
            );
        }
    }
    text
}

/// Sentences on one phase, from what was simulated to the verdict.
pub fn sentences(name: &str, claim: &Claim, read_gb_per_s: f64) -> Vec<String> {
    let (ms, gb) =
        (|us: f64| format!("{} ms", number(us / 1000.0)), |bytes: f64| format!("{} GB", number(bytes / 1e9)));
    let floor = &claim.floor;
    let round = if claim.plan_tokens == 1 { "a round".to_owned() } else { format!("{} tokens", claim.plan_tokens) };
    let base_us = claim.base_for_plan_us();
    let mut text = vec![format!(
        "{name}, simulated: whole layers take {} for {round}, this plan {}: {}x.",
        ms(base_us),
        ms(claim.plan_us),
        number(claim.reach.speedup)
    )];
    text.push(format!(
        "Memory floor of any placement: a round reads {}; the GPU can hold all but {} of it, which crosses the DRAM at \
         {} GB/s: {}.",
        gb(floor.read_bytes),
        gb(floor.host_bytes),
        number(read_gb_per_s),
        ms(floor.memory_us)
    ));
    text.push(format!(
        "Chain floor of any placement: every item in turn on its faster processor takes {}.",
        ms(floor.chain_us)
    ));
    text.push(format!(
        "So no placement gains more than {} / {} = {}x; with this one's transfers and busiest processor at most {}x.",
        ms(base_us),
        ms(floor.us()),
        number(claim.most_any()),
        number(claim.reach.most)
    ));
    text.push(verdict(claim, base_us, &ms));
    text
}

fn verdict(claim: &Claim, base_us: f64, ms: &dyn Fn(f64) -> String) -> String {
    let asked = format!("{}x asks for {} / {} = {}", claim.paper, ms(base_us), claim.paper, ms(claim.asked_us()));
    match claim.verdict() {
        Verdict::Reached => format!("The paper's {asked}: reached."),
        Verdict::WithinFloors => format!("The paper's {asked}: within the floors, not reached by this plan."),
        Verdict::BeyondFloors => format!(
            "The paper's {asked}: beyond the floors here. It takes a baseline of at least {} x {} = {}, {}x slower \
             than the simulated one.",
            claim.paper,
            ms(claim.floor.us()),
            ms(claim.paper * claim.floor.us()),
            number(claim.paper * claim.floor.us() / base_us)
        ),
    }
}

/// Head of the CSV.
pub const CSV_HEADER: &str = "model,machine,vram_mib,phase,base,base_tokens_per_s,placement_tokens_per_s,\
                              coordination_tokens_per_s,plan_tokens_per_s,speedup,most_this_placement,\
                              most_any_placement,memory_floor_ms,chain_floor_ms,paper,verdict";

/// Lines of the CSV: decode, prefill.
pub fn csv(model: &str, machine: &str, vram_mib: u64, comparison: &Comparison) -> String {
    let mut text = String::new();
    for (name, claim) in phases(comparison) {
        let speeds = comparison.rows.each_ref().map(|row| {
            let speed = if name == "decode" { row.decode_tokens_per_s() } else { row.prefill_tokens_per_s() };
            format!("{speed:.2}")
        });
        text.push_str(&format!(
            "{model},{machine},{vram_mib},{name},{},{},{:.2},{:.2},{:.2},{:.2},{:.2},{},{}\n",
            comparison.base,
            speeds.join(","),
            claim.reach.speedup,
            claim.reach.most,
            claim.most_any(),
            claim.floor.memory_us / 1000.0,
            claim.floor.chain_us / 1000.0,
            claim.paper,
            claim.verdict().name()
        ));
    }
    text
}
