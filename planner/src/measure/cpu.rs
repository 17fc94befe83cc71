//! The CPU's half of a profile: memory, barrier, and a curve for each kind of operator and type that is asked for.
//!
//! All figures of a profile, plain reads with them, are taken together and in sweeps (`settle`), so that they are of
//! the same calm machine. Next: `settle.rs`.

use super::figures::{Needs, Pace, Shape, last_point, missing, teams, timed_teams, unmeasured};
use super::lab::{Lab, barrier_us, rotation_bytes};
use super::products::weight_type;
use super::settle::{Figure, Kind, Settled, settle};
use super::{MeasureError, Watch};
use crate::profile::{
    Backend, Contention, CoreClass, Cpu, Curve, Key, Latency, Memory, Operator, Point, Profile, ProfileKind,
    Provenance, SCHEMA_VERSION,
};
use device::machine::MachineDescription;
use device::memory::HostMemoryInfo;
use device::topology::Topology;
use kernels::quant::packed_bytes;

/// Reading pages of a file that are not in memory: assumed, since measuring it would need a file to drop from there.
const STORAGE_GB_PER_S: f64 = 2.0;
/// Sampling and bookkeeping between rounds: assumed.
const ROUND_GAP_US: f64 = 60.0;
/// Barriers per operator: row-wise operators between two products share one (10 in a layer of 16 operators).
const BARRIERS_PER_OPERATOR: f64 = 0.625;
/// Share of the teams' CPU time that others may take before a profile says so.
const BUSY: f64 = 0.1;
/// Share of the memory's rate of which the same holds.
const SLOWER: f64 = 0.15;
/// How such notes begin.
pub const DISTURBANCE: &str = "Others took";
/// Part of the available memory that is left to others.
const HEADROOM: u64 = 8;
/// Weights below which a matrix of a model's is not compared with the curves' large one.
const COMPARED_BYTES: f64 = (1 << 21) as f64;
/// A team's reads before they are measured.
const NOT_READ_GB_PER_S: f64 = 1e-3;
/// Tokens of a decode step, for which a model's matrices are timed with a part of the team too.
const DECODE_TOKENS: u32 = 1;

/// The profile of this machine without its GPUs, with the curves that are needed.
///
/// # Errors
/// No memory or threads to measure with, or a type that no kernel computes with.
pub fn machine(needs: &Needs, pace: Pace, watch: &mut Watch<'_>) -> Result<Profile, MeasureError> {
    apart(|| {
        let topology = Topology::of_this_process()?;
        let description = MachineDescription::of_this_process()?;
        let mut profile = described(&description, &pace, rotation_bytes(&topology, &pace));
        let most = u16::try_from(description.threads_at_most).unwrap_or(u16::MAX).max(1);
        profile.contention = teams(most).into_iter().map(|threads| alone(threads, NOT_READ_GB_PER_S)).collect();
        curves(&mut profile, &topology, needs, (&pace, teams(most)), watch)?;
        Ok(profile)
    })
}

/// Adds curves to this machine's profile.
///
/// # Errors
/// As [`machine`].
pub fn add_curves(profile: &mut Profile, needs: &Needs, pace: Pace, watch: &mut Watch<'_>) -> Result<(), MeasureError> {
    if missing(profile, Backend::Cpu, needs).is_empty() {
        return Ok(());
    }
    let read = timed_teams(full_team(profile));
    apart(|| curves(profile, &Topology::of_this_process()?, needs, (&pace, read), watch))
}

/// Adds measured points of a model's own shapes to this machine's profile, for the full team: those that it lacks.
///
/// # Errors
/// As [`machine`].
pub fn add_points(
    profile: &mut Profile,
    shapes: &[Shape],
    pace: Pace,
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    let shapes = unmeasured(profile, Backend::Cpu, shapes);
    if shapes.is_empty() {
        return Ok(());
    }
    apart(|| {
        let figures = point_figures(&shapes, full_team(profile), &pace);
        let topology = Topology::of_this_process()?;
        let mut lab = Lab::new(&topology, full_team(profile), (pace, figures.len() * pace.sweeps), watch)?;
        let settled = settle(&figures, pace.sweeps, &|figure| of_curve(profile, figure), &mut lab)?;
        profile.provenance.assumptions.extend(slower_note(profile, &figures, &settled));
        keep_reads(profile, &figures, &settled);
        for (figure, &gb_per_s) in figures.iter().zip(&settled.gb_per_s) {
            profile.points.extend(point(figure, gb_per_s)?);
        }
        profile.provenance.assumptions.extend(settled.note(&figures));
        Ok(())
    })
}

/// Plain reads, and every shape's: for the full team, and for a decode step also for a part of it, since how many
/// threads decode hangs on that.
fn point_figures(shapes: &[Shape], most: u16, pace: &Pace) -> Vec<Figure> {
    let teams = timed_teams(most);
    let parts = teams[teams.len().saturating_sub(2)..].to_vec();
    let mut figures: Vec<Figure> = parts.iter().map(|&threads| plain_read(threads)).collect();
    for shape in shapes {
        let kind = Kind::Operator(shape.operator, shape.weight_type);
        let figure = |tokens, threads| Figure { kind, shape: Some((shape.rows, shape.columns)), tokens, threads };
        figures.extend(shape.tokens(pace).iter().map(|&tokens| figure(tokens, most)));
        figures.extend(parts.iter().filter(|&&part| part < most).map(|&part| figure(DECODE_TOKENS, part)));
    }
    figures
}

fn plain_read(threads: u16) -> Figure {
    Figure { kind: Kind::Read, shape: None, tokens: 1, threads }
}

/// What the curves say of a figure of a large matrix.
fn of_curve(profile: &Profile, figure: &Figure) -> Option<f64> {
    let (Kind::Operator(operator, name), Some((rows, columns))) = (figure.kind, figure.shape) else { return None };
    let bytes = packed_bytes(weight_type(name).ok()?, rows as usize, columns as usize).ok()? as f64;
    let key = Key {
        backend: Backend::Cpu,
        operator,
        weight_type: name,
        rows: 0,
        columns,
        bytes,
        matrices: 1.0,
        tokens: f64::from(figure.tokens),
        threads: figure.threads,
    };
    let curve_us = (bytes >= COMPARED_BYTES).then(|| profile.time_us(&key).ok()).flatten()?;
    Some(bytes / curve_us / 1000.0)
}

/// A measured point of a model's own shape.
fn point(figure: &Figure, gb_per_s: f64) -> Result<Option<Point>, MeasureError> {
    let (Kind::Operator(operator, name), Some((rows, columns))) = (figure.kind, figure.shape) else { return Ok(None) };
    let bytes = packed_bytes(weight_type(name)?, rows as usize, columns as usize)? as f64;
    Ok(Some(Point {
        backend: Backend::Cpu,
        operator,
        weight_type: name.to_owned(),
        rows,
        columns,
        tokens: figure.tokens,
        threads: figure.threads,
        time_us: rounded(bytes / gb_per_s / 1000.0),
    }))
}

/// Runs `work` on a thread of its own: a team pins the thread that drives it, which the planner's must not be.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, MeasureError> + Send) -> Result<T, MeasureError> {
    std::thread::scope(|scope| {
        let handle = std::thread::Builder::new().name("measure".into()).spawn_scoped(scope, work);
        let handle = handle.map_err(|error| MeasureError::Interrupted(error.to_string()))?;
        handle.join().unwrap_or_else(|_| Err(MeasureError::Interrupted("its thread died".to_owned())))
    })
}

fn full_team(profile: &Profile) -> u16 {
    profile.contention.last().map_or(1, |entry| entry.threads)
}

/// What needs no clock.
fn described(description: &MachineDescription, pace: &Pace, rotated_bytes: usize) -> Profile {
    let cores = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let threads_per_core = cores((description.cpus / description.cores.max(1)).max(1));
    let class = |name: &str, count| CoreClass { name: name.to_owned(), cores: cores(count), threads_per_core };
    let slow = description.cores.saturating_sub(description.fast_cores);
    let core_classes = match slow {
        0 => vec![class("all", description.cores)],
        _ => vec![class("performance", description.fast_cores), class("efficiency", slow)],
    };
    let assumptions = [
        format!("From the last point of a curve on, the time per token is constant ({:?} tokens)", pace.product_tokens),
        format!("{BARRIERS_PER_OPERATOR} barriers per operator; {ROUND_GAP_US} us between rounds"),
        format!("Pages that are not in memory come at {STORAGE_GB_PER_S} GB/s"),
    ];
    Profile {
        schema_version: SCHEMA_VERSION,
        routing: None,
        name: "this machine".to_owned(),
        provenance: Provenance {
            kind: ProfileKind::Measured,
            sources: vec![format!(
                "ats-plan {}, the calmest of {} medians over {} MiB of rotating weights",
                env!("CARGO_PKG_VERSION"),
                pace.sweeps,
                rotated_bytes >> 20
            )],
            assumptions: assumptions.into(),
            efficiencies: Vec::new(),
        },
        cpu: Cpu { model: description.cpu_model.clone(), core_classes },
        memory: memory(&description.memory),
        gpu: None,
        latency: Latency {
            cpu_op_us: 0.0,
            gpu_op_us: 0.0,
            to_gpu_us: 0.0,
            to_cpu_us: 0.0,
            blocking_switch_us: 0.0,
            round_gap_us: ROUND_GAP_US,
        },
        contention: Vec::new(),
        curves: Vec::new(),
        points: Vec::new(),
    }
}

/// Memory as of now: what is available to this process, less what is left to others.
pub(crate) fn memory(info: &HostMemoryInfo) -> Memory {
    let left =
        info.cgroup_limit_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(info.cgroup_used_bytes.unwrap_or(0)));
    let usable_bytes = info.available_bytes.min(left.max(info.available_bytes.min(1 << 30)));
    let available_mib = (usable_bytes - usable_bytes / HEADROOM) >> 20;
    Memory {
        total_mib: info.total_bytes >> 20,
        available_mib,
        pinned_limit_mib: available_mib,
        read_gb_per_s: 0.0,
        storage_gb_per_s: STORAGE_GB_PER_S,
    }
}

/// A team beside an idle link: without a GPU there is no other.
fn alone(threads: u16, gb_per_s: f64) -> Contention {
    Contention {
        threads,
        cpu_alone_gb_per_s: gb_per_s,
        cpu_while_link_gb_per_s: gb_per_s,
        link_alone_gb_per_s: 1.0,
        link_while_cpu_gb_per_s: 1.0,
    }
}

/// Four significant digits: what a figure is worth.
pub(super) fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Takes the figures of the curves that are missing, and plain reads of the teams in `read` beside them.
fn curves(
    profile: &mut Profile,
    topology: &Topology,
    needs: &Needs,
    (pace, read): (&Pace, Vec<u16>),
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    let missing = missing(profile, Backend::Cpu, needs);
    let (most, teams) = (full_team(profile), timed_teams(full_team(profile)));
    let mut figures: Vec<Figure> = read.into_iter().map(plain_read).collect();
    for &threads in &teams {
        for &(operator, name) in &missing {
            let figure = |&tokens| Figure { kind: Kind::Operator(operator, name), shape: None, tokens, threads };
            figures.extend(pace.points(operator).iter().map(figure));
        }
    }
    let mut lab = Lab::new(topology, most, (*pace, figures.len() * pace.sweeps), watch)?;
    let barrier_before_us = barrier_us(&mut lab.team)?;
    let settled = settle(&figures, pace.sweeps, &|_| None, &mut lab)?;
    if profile.latency.cpu_op_us == 0.0 {
        lab.team.set_active(usize::from(most));
        let barrier_us = barrier_before_us.min(barrier_us(&mut lab.team)?);
        profile.latency.cpu_op_us = rounded(barrier_us * BARRIERS_PER_OPERATOR);
    }
    keep_reads(profile, &figures, &settled);
    for &(operator, name) in &missing {
        for &threads in &teams {
            let of_curve = |figure: &Figure| figure.kind == Kind::Operator(operator, name) && figure.threads == threads;
            let known = figures.iter().zip(&settled.gb_per_s).filter(|(figure, _)| of_curve(figure));
            profile.curves.push(curve((operator, name, threads), known.map(|(f, &rate)| (f.tokens, rate)).unzip()));
        }
    }
    profile.provenance.assumptions.extend(settled.note(&figures));
    let taken = lab.share_of_others();
    if taken > BUSY {
        let note = format!("{DISTURBANCE} {:.0} % of the CPU time of the teams that were timed", 100.0 * taken);
        profile.provenance.assumptions.push(note);
    }
    Ok(())
}

/// A curve up to the last point that plans need.
fn curve((operator, name, threads): (Operator, &str, u16), (mut tokens, rates): (Vec<u32>, Vec<f64>)) -> Curve {
    let mut gb_per_s: Vec<f64> = rates.into_iter().map(rounded).collect();
    if let (Some(&last), Some(&rate)) = (tokens.last(), gb_per_s.last()) {
        let end = last_point(operator);
        tokens.push(end);
        // Row-wise operators take their time per byte, whatever the tokens.
        let per_token = operator != Operator::Elementwise;
        gb_per_s.push(if per_token { rounded(rate * f64::from(last) / f64::from(end)) } else { rate });
    }
    Curve { backend: Backend::Cpu, operator, weight_type: name.to_owned(), threads, tokens, gb_per_s }
}

/// Keeps what memory was seen to deliver to each team: by a plain read, or by a product that was faster, since products
/// rotate through more weights than caches hold. A profile's earlier figure stays if it is higher.
fn keep_reads(profile: &mut Profile, figures: &[Figure], settled: &Settled) {
    for entry in &mut profile.contention {
        let of_team =
            figures.iter().zip(&settled.gb_per_s).filter(|(f, _)| f.threads == entry.threads && shows_reads(f));
        let seen = of_team.map(|(_, &rate)| rounded(rate)).fold(0.0, f64::max);
        if seen > entry.cpu_alone_gb_per_s {
            let beside_link = entry.cpu_while_link_gb_per_s / entry.cpu_alone_gb_per_s;
            *entry =
                Contention { cpu_alone_gb_per_s: seen, cpu_while_link_gb_per_s: rounded(seen * beside_link), ..*entry };
        }
        profile.memory.read_gb_per_s = profile.memory.read_gb_per_s.max(entry.cpu_alone_gb_per_s);
    }
}

/// What is said where memory delivered much less than the profile knows it to.
fn slower_note(profile: &Profile, figures: &[Figure], settled: &Settled) -> Option<String> {
    let read = |threads: u16| profile.contention.iter().find(|entry| entry.threads == threads);
    let shares = figures.iter().zip(&settled.gb_per_s).filter(|(figure, _)| figure.kind == Kind::Read);
    let shares = shares.filter_map(|(figure, rate)| Some(rate / read(figure.threads)?.cpu_alone_gb_per_s));
    let taken = 1.0 - shares.fold(0.0, f64::max);
    (taken > SLOWER).then(|| format!("{DISTURBANCE} {:.0} % of the memory's rate from a model's shapes", 100.0 * taken))
}

fn shows_reads(figure: &Figure) -> bool {
    matches!(figure.kind, Kind::Read | Kind::Operator(Operator::Matmul | Operator::ExpertMatmul, _))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{machines::MACHINES, synthetic};

    fn settled(gb_per_s: &[f64]) -> Settled {
        Settled { gb_per_s: gb_per_s.to_vec(), again: 0, changed: Vec::new(), odd: 0 }
    }

    #[test]
    fn memory_delivers_what_any_read_or_product_of_the_team_was_seen_to_get() {
        let mut profile = synthetic::profile(&MACHINES[0]);
        let threads = full_team(&profile);
        let product = |operator| Figure { kind: Kind::Operator(operator, "Q4_K"), ..plain_read(threads) };
        let figures = [plain_read(threads), product(Operator::Matmul), product(Operator::Attention)];
        let before = profile.contention.clone();
        let link_share = before.last().map(|e| e.cpu_while_link_gb_per_s / e.cpu_alone_gb_per_s).unwrap();
        // Attention may find its cache in a cache.
        keep_reads(&mut profile, &figures, &settled(&[80.0, 90.0, 500.0]));
        let last = *profile.contention.last().unwrap();
        assert_eq!((last.cpu_alone_gb_per_s, profile.memory.read_gb_per_s), (90.0, 90.0));
        assert!((last.cpu_while_link_gb_per_s / 90.0 - link_share).abs() < 1e-3);
        assert_eq!(profile.contention[..before.len() - 1], before[..before.len() - 1]);
        keep_reads(&mut profile, &figures, &settled(&[70.0, 70.0, 70.0]));
        assert_eq!(*profile.contention.last().unwrap(), last, "what was seen once stays");
    }

    #[test]
    fn a_slow_memory_is_said() {
        let profile = synthetic::profile(&MACHINES[0]);
        let (threads, known) = (full_team(&profile), profile.contention.last().unwrap().cpu_alone_gb_per_s);
        let note = |share: f64| slower_note(&profile, &[plain_read(threads)], &settled(&[known * share]));
        assert_eq!((note(1.1), note(0.9)), (None, None));
        assert_eq!(note(0.6).unwrap(), "Others took 40 % of the memory's rate from a model's shapes");
    }

    #[test]
    fn a_models_shapes_are_timed_for_the_full_team_and_for_decode_with_half_of_it() {
        let shape = Shape { operator: Operator::Matmul, weight_type: "Q4_K", rows: 4096, columns: 4096 };
        let figures = point_figures(&[shape], 16, &Pace::SHAPES);
        let of = |threads| figures.iter().filter(move |f| f.threads == threads && f.shape.is_some()).map(|f| f.tokens);
        assert_eq!((of(16).collect(), of(8).collect()), (Pace::SHAPES.point_tokens.to_vec(), vec![1]));
        let reads = figures.iter().filter(|f| f.kind == Kind::Read).map(|f| f.threads);
        assert_eq!(reads.collect::<Vec<_>>(), [8, 16]);
    }
}
