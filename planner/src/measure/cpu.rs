//! The CPU's half of a profile: memory, barrier, and a curve for each kind of operator and type that is asked for.

use super::attention::{CacheElement, attention_gb_per_s};
use super::buffer::Buffer;
use super::figures::{Needs, Pace, Shape, last_point, missing, teams, timed_teams, unmeasured};
use super::products::{ProductCase, weight_type};
use super::rows::{DELTA_BYTES, delta_us, elementwise_gb_per_s};
use super::{MeasureError, Watch, steady_us};
use crate::profile::{
    Backend, Contention, CoreClass, Cpu, Curve, Latency, Memory, Operator, Point, Profile, ProfileKind, Provenance,
    SCHEMA_VERSION,
};
use device::machine::MachineDescription;
use device::memory::HostMemoryInfo;
use device::probe::{Effort, barrier, read_curve};
use device::team::{Team, TeamConfig};
use device::topology::Topology;
use kernels::quant::packed_bytes;
use std::time::Instant;

/// Reading pages of a file that are not in memory: assumed, since measuring it would need a file to drop from there.
const STORAGE_GB_PER_S: f64 = 2.0;
/// Sampling and bookkeeping between rounds: assumed.
const ROUND_GAP_US: f64 = 60.0;
/// Barriers per operator: row-wise operators between two products share one (10 in a layer of 16 operators).
const BARRIERS_PER_OPERATOR: f64 = 0.625;
/// Rows that lie together in memory.
const PANEL_ROWS: u64 = 16;
/// Rows of a slice that stands for a matrix when there are many tokens.
const SLICE_ROWS: u64 = 256;
/// Tokens up to which a whole matrix is timed.
const WHOLE_TOKENS: u32 = 64;
/// Share of the teams' CPU time that others may take before a profile says so.
const BUSY: f64 = 0.1;
/// How that note begins.
pub const DISTURBANCE: &str = "Others took";
/// Part of the available memory that is left to others.
const HEADROOM: u64 = 8;

/// The profile of this machine without its GPUs, with the curves that are needed.
///
/// # Errors
/// No memory or threads to measure with, or a type that no kernel computes with.
pub fn machine(needs: &Needs, pace: Pace, watch: &mut Watch<'_>) -> Result<Profile, MeasureError> {
    apart(|| {
        let topology = Topology::of_this_process()?;
        let description = MachineDescription::of_this_process()?;
        let mut profile = described(&description, &pace);
        measure_memory(&mut profile, &topology, &description, &pace, watch)?;
        curves(&mut profile, &topology, needs, &pace, watch)?;
        Ok(profile)
    })
}

/// Adds curves to this machine's profile.
///
/// # Errors
/// As [`machine`].
pub fn add_curves(profile: &mut Profile, needs: &Needs, pace: Pace, watch: &mut Watch<'_>) -> Result<(), MeasureError> {
    apart(|| curves(profile, &Topology::of_this_process()?, needs, &pace, watch))
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
        let figures = shapes.iter().map(|shape| shape.tokens(&pace).len()).sum();
        let mut lab = Lab::new(&Topology::of_this_process()?, full_team(profile), pace, figures)?;
        for (index, shape) in shapes.iter().enumerate() {
            for &tokens in shape.tokens(&pace) {
                watch(&format!("{shape}, {tokens} tokens"), index as f64 / shapes.len() as f64);
                profile.points.push(lab.point(shape, tokens)?);
            }
        }
        Ok(())
    })
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
fn described(description: &MachineDescription, pace: &Pace) -> Profile {
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
                "ats-plan {}, medians over {} MiB of rotating weights",
                env!("CARGO_PKG_VERSION"),
                pace.rotation_bytes >> 20
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

/// Reads by team size, and the barrier.
fn measure_memory(
    profile: &mut Profile,
    topology: &Topology,
    description: &MachineDescription,
    pace: &Pace,
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    let most = u16::try_from(description.threads_at_most).unwrap_or(u16::MAX).max(1);
    let teams: Vec<usize> = teams(most).into_iter().map(usize::from).collect();
    let effort = pace.effort(4 * teams.len(), pace.all);
    watch("memory", 0.0);
    let points = read_curve(topology, &teams, rotation_bytes(topology, pace), effort, |point| {
        watch(&format!("memory with {} threads", point.threads), 0.0);
    })?;
    for point in &points {
        let disturbance = point.timing.median_us / steady_us(&point.timing).max(1e-3);
        let (threads, rate) = (point.threads as u16, rounded(point.gb_per_s * disturbance));
        profile.contention.push(alone(threads, rate));
        profile.memory.read_gb_per_s = profile.memory.read_gb_per_s.max(rate);
    }
    let mut team = Team::new(TeamConfig::on_cores(topology, usize::from(most)))?;
    profile.latency.cpu_op_us = rounded(steady_us(&barrier(&mut team, effort)?) * BARRIERS_PER_OPERATOR);
    Ok(())
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

fn curves(
    profile: &mut Profile,
    topology: &Topology,
    needs: &Needs,
    pace: &Pace,
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    let missing = missing(profile, Backend::Cpu, needs);
    let (most, teams) = (full_team(profile), timed_teams(full_team(profile)));
    if missing.is_empty() {
        return Ok(());
    }
    let per_team: usize = missing.iter().map(|(operator, _)| pace.points(*operator).len()).sum();
    let mut lab = Lab::new(topology, most, *pace, per_team * teams.len())?;
    let mut taken = 0.0;
    for (index, &(operator, name)) in missing.iter().enumerate() {
        for &threads in &teams {
            watch(&format!("{name} {operator:?}, {threads} threads"), index as f64 / missing.len() as f64);
            lab.team.set_active(usize::from(threads));
            profile.curves.push(lab.curve((operator, name))?);
            taken += f64::from(lab.team.pressure().mean_share);
        }
    }
    profile.memory.read_gb_per_s = proven_read_gb_per_s(profile);
    let taken = taken / (missing.len() * teams.len()) as f64;
    if taken > BUSY {
        let note = format!("{DISTURBANCE} {:.0} % of the CPU time of the teams that were timed", 100.0 * taken);
        profile.provenance.assumptions.push(note);
    }
    Ok(())
}

/// What memory delivers at least. Products rotate through more weights than caches hold: one that is faster than the
/// plain read was says that others disturbed that.
fn proven_read_gb_per_s(profile: &Profile) -> f64 {
    let products = profile.curves.iter().filter(|c| (c.backend, c.operator) == (Backend::Cpu, Operator::Matmul));
    products.flat_map(|curve| curve.gb_per_s.first()).fold(profile.memory.read_gb_per_s, |most, &rate| most.max(rate))
}

/// Memory to rotate through: several times what the caches hold, but no more than a quarter of what is available.
fn rotation_bytes(topology: &Topology, pace: &Pace) -> usize {
    let caches = topology.caches.iter().map(|cache| cache.size_bytes.saturating_mul(cache.instances as u64)).max();
    let wanted = pace.rotation_bytes.max(4 * caches.unwrap_or(0).min(1 << 31) as usize);
    let available = HostMemoryInfo::of_this_process().map_or(1 << 30, |info| info.available_bytes);
    wanted.min((available / 4) as usize).max(16 << 20)
}

/// A team, weights, and the time that is left.
struct Lab {
    team: Team,
    buffer: Buffer,
    pace: Pace,
    figures_left: usize,
    ends: Instant,
}

impl Lab {
    fn new(topology: &Topology, threads: u16, pace: Pace, figures: usize) -> Result<Lab, MeasureError> {
        let ends = Instant::now() + pace.all;
        let mut team = Team::new(TeamConfig::on_cores(topology, usize::from(threads)))?;
        let buffer = Buffer::new(&mut team, rotation_bytes(topology, &pace))?;
        Ok(Lab { team, buffer, pace, figures_left: figures, ends })
    }

    /// Effort of the next figure.
    fn effort(&mut self) -> Effort {
        let effort = self.pace.effort(self.figures_left, self.ends.saturating_duration_since(Instant::now()));
        self.figures_left = self.figures_left.saturating_sub(1);
        effort
    }

    /// A curve of the active team.
    fn curve(&mut self, need: (Operator, &str)) -> Result<Curve, MeasureError> {
        let (operator, name) = need;
        let mut tokens = self.pace.points(operator).to_vec();
        let rates = tokens.iter().map(|&tokens| self.rate(need, tokens).map(rounded));
        let mut gb_per_s = rates.collect::<Result<Vec<f64>, _>>()?;
        if let (Some(&last), Some(&rate)) = (tokens.last(), gb_per_s.last()) {
            let end = last_point(operator);
            tokens.push(end);
            // Row-wise operators take their time per byte, whatever the tokens.
            let per_token = operator != Operator::Elementwise;
            gb_per_s.push(if per_token { rounded(rate * f64::from(last) / f64::from(end)) } else { rate });
        }
        Ok(Curve {
            backend: Backend::Cpu,
            operator,
            weight_type: name.to_owned(),
            threads: self.team.active() as u16,
            tokens,
            gb_per_s,
        })
    }

    fn rate(&mut self, (operator, name): (Operator, &str), tokens: u32) -> Result<f64, MeasureError> {
        let effort = self.effort();
        let (team, buffer) = (&mut self.team, &self.buffer);
        let product = |case: ProductCase, team: &mut Team| {
            Ok(case.bytes()? as f64 / case.time_us(team, buffer, effort)? / 1000.0)
        };
        match operator {
            Operator::Matmul => product(ProductCase::dense(weight_type(name)?, tokens), team),
            Operator::ExpertMatmul => product(ProductCase::expert(weight_type(name)?, tokens), team),
            Operator::Attention => {
                let element = if name == "F32" { CacheElement::F32 } else { CacheElement::F16 };
                attention_gb_per_s(team, buffer, (element, tokens), effort)
            }
            Operator::DeltaNet => Ok(DELTA_BYTES / delta_us(team, tokens as usize, effort)? / 1000.0),
            Operator::Elementwise => elementwise_gb_per_s(team, effort),
        }
    }

    /// A point of a shape; for many tokens, and of a matrix too large to rotate through, on a slice of its rows.
    fn point(&mut self, shape: &Shape, tokens: u32) -> Result<Point, MeasureError> {
        let effort = self.effort();
        let ty = weight_type(shape.weight_type)?;
        let panel_bytes = packed_bytes(ty, PANEL_ROWS as usize, shape.columns as usize)?;
        let timed_rows = timed_rows(shape.rows, tokens, self.buffer.bytes().len() / panel_bytes.max(1));
        let case = ProductCase { ty, rows: timed_rows as usize, cols: shape.columns as usize, tokens: tokens as usize };
        let time_us = case.time_us(&mut self.team, &self.buffer, effort)?;
        Ok(Point {
            backend: Backend::Cpu,
            operator: shape.operator,
            weight_type: shape.weight_type.to_owned(),
            rows: shape.rows,
            columns: shape.columns,
            tokens,
            threads: self.team.active() as u16,
            time_us: rounded(time_us * shape.rows as f64 / timed_rows as f64),
        })
    }
}

/// Rows that are timed of a matrix: all, or as many as stand for it. They take at most half of what is rotated through.
fn timed_rows(rows: u64, tokens: u32, rotated_panels: usize) -> u64 {
    let fitting = (rotated_panels as u64 / 2).max(1) * PANEL_ROWS;
    rows.min(if tokens > WHOLE_TOKENS { SLICE_ROWS.min(fitting) } else { fitting })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_stands_for_what_is_too_large_or_takes_too_long() {
        // Rows, tokens, panels that are rotated through: whole, many tokens, a large matrix, both, no room.
        let cases = [
            (5120, 64, 20_000, 5120),
            (5120, 65, 20_000, 256),
            (151_936, 1, 4000, 32_000),
            (151_936, 512, 20, 160),
            (9, 1, 0, 9),
        ];
        for (rows, tokens, panels, timed) in cases {
            assert_eq!(timed_rows(rows, tokens, panels), timed, "{rows} rows, {tokens} tokens");
        }
    }
}
