//! A program priced on a device: the cost model of every phase and context bucket.

use super::space;
use super::stored::stored_bytes;
use super::work::{Round, Work, streaming, works};
use super::{Demand, ItemFacts, Problem, UbatchFacts};
use crate::profile::{Backend, Contention, Gpu, Key, NotMeasured, Operator, Profile, transfer_us};
use plan_format::arena::{Arena, RoundLimits};
use plan_format::artifact::KvType;
use plan_format::costs::{CaseCosts, CostModel, ItemCost, Team};
use plan_format::operands::Columns;
use plan_format::program::{Item, ItemKind, OpKind, Program};
use plan_format::routing::LayerHits;
use plan_format::schedule::{Phase, STAGING_BYTES};
use plan_format::sizes::CacheSpan;
use plan_format::{ItemId, WeightId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Why a program has no price.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PriceError {
    /// The profile lacks a time.
    #[error(transparent)]
    NotMeasured(#[from] NotMeasured),
    /// Nothing to choose an ubatch from.
    #[error("no ubatch fits a context of {context_tokens} tokens; the smallest on offer is {smallest}")]
    NoUbatch {
        /// Planned context.
        context_tokens: u32,
        /// Smallest ubatch of the demand.
        smallest: u32,
    },
}

/// Token counts of the verification phases.
pub const VERIFY_TOKENS: [u32; 3] = [2, 4, 8];

/// Prices a verified program on a device.
///
/// # Errors
/// A time that the profile does not have, or no ubatch within the context.
pub fn price(program: &Program, profile: &Profile, demand: &Demand) -> Result<Problem, PriceError> {
    let fits = |ubatch: &u32| *ubatch <= demand.context_tokens;
    let ubatch_tokens: Vec<u32> = demand.ubatch_tokens.iter().copied().filter(fits).collect();
    if ubatch_tokens.is_empty() {
        let smallest = demand.ubatch_tokens.first().copied().unwrap_or(0);
        return Err(PriceError::NoUbatch { context_tokens: demand.context_tokens, smallest });
    }
    let demand = Demand { ubatch_tokens, ..demand.clone() };
    let edges = Edges::new(program);
    let mut pricer = Pricer { program, profile, edges: &edges, demand: &demand, memo: HashMap::new() };
    let (mut cases, mut slot_bytes, mut read_bytes) = (Vec::new(), Vec::new(), Vec::new());
    for phase in phases(&demand) {
        for context_tokens in demand.priced_contexts(phase) {
            let priced = pricer.case(phase, context_tokens)?;
            cases.push(priced.costs);
            slot_bytes.push(priced.slot_bytes);
            read_bytes.push(priced.read_bytes);
        }
    }
    let teams = profile.teams().iter().map(team).collect();
    Ok(Problem {
        items: facts(program, &edges),
        costs: CostModel { teams, input_start: edges.start.clone(), inputs: edges.inputs.clone(), cases },
        slot_bytes,
        read_bytes,
        ubatches: demand.ubatch_tokens.iter().map(|&tokens| ubatch_facts(program, tokens, &demand)).collect(),
        small_weight_bytes: space::small_weight_bytes(program),
        demand,
    })
}

/// The times that pricing a program asks a profile for: kinds of operator with their types, each once.
pub fn needs(program: &Program, kv_type: KvType) -> Vec<(Operator, &'static str)> {
    let round = Round { tokens: 1, outputs: 1, context_tokens: 1, kv_type };
    let works = program.ops.iter().flat_map(|op| works(program, &op.kind, &round, None));
    let mut needs = Vec::new();
    for need in works.map(|work| (work.operator, work.weight_type)) {
        if !needs.contains(&need) {
            needs.push(need);
        }
    }
    needs
}

/// Phases of a demand, in the order of the artifact.
pub fn phases(demand: &Demand) -> Vec<Phase> {
    // Every round fits every arena to choose from.
    let most = demand.ubatch_tokens.first().copied().unwrap_or(u32::MAX).min(demand.context_tokens);
    let verify = VERIFY_TOKENS.into_iter().filter(|&tokens| tokens <= most);
    let mut phases = vec![Phase::Decode];
    phases.extend(verify.map(|tokens| Phase::Verify { tokens }));
    phases.extend(demand.ubatch_tokens.iter().map(|&ubatch_tokens| Phase::Prefill { ubatch_tokens }));
    phases
}

fn team(entry: &Contention) -> Team {
    let slowdown = |alone: f64, together: f64| (alone / together).max(1.0) as f32;
    Team {
        threads: entry.threads,
        cpu_slowdown_while_link: slowdown(entry.cpu_alone_gb_per_s, entry.cpu_while_link_gb_per_s),
        link_slowdown_while_cpu: slowdown(entry.link_alone_gb_per_s, entry.link_while_cpu_gb_per_s),
    }
}

/// Decode and verification rounds among those up to `limits`.
pub fn few_limits(limits: RoundLimits) -> RoundLimits {
    let most = VERIFY_TOKENS[VERIFY_TOKENS.len() - 1];
    RoundLimits { ubatch_tokens: limits.ubatch_tokens.min(most), output_tokens: limits.output_tokens.min(most) }
}

fn ubatch_facts(program: &Program, ubatch_tokens: u32, demand: &Demand) -> UbatchFacts {
    let output_tokens = VERIFY_TOKENS[VERIFY_TOKENS.len() - 1].max(demand.output_tokens).min(ubatch_tokens);
    let limits = RoundLimits { ubatch_tokens, output_tokens };
    let span = CacheSpan { context_tokens: demand.context_tokens, ubatch_tokens };
    let arena_bytes = |limits| Arena::new(program, limits).size_bytes;
    let work_bytes = |limits| space::work_bytes(program, limits, demand.context_tokens);
    UbatchFacts {
        ubatch_tokens,
        output_tokens,
        arena_bytes: arena_bytes(limits),
        gpu_work_bytes: work_bytes(limits),
        gpu_input_bytes: space::input_bytes(program, limits),
        few_bytes: arena_bytes(few_limits(limits)) + work_bytes(few_limits(limits)),
        state_bytes: program.items.iter().map(|i| space::state_bytes(program, i, span, demand.kv_type)).collect(),
    }
}

fn facts(program: &Program, edges: &Edges) -> Vec<ItemFacts> {
    let stored = |weight: &WeightId| stored_bytes(&program.held(*weight));
    let per_token = |columns: &Columns| u64::from(columns.width) * u64::from(columns.groups) * 4;
    let fact = |(index, item): (usize, &Item)| ItemFacts {
        name: item.name.clone(),
        kind: item.kind,
        layer: item.layer,
        // Embedding rows are looked up in the file's own pages: no memory is planned for them.
        weight_bytes: if item.kind == ItemKind::Embedding { 0 } else { item.weights.iter().map(stored).sum() },
        output_bytes_per_token: edges.outputs[index].iter().map(per_token).sum(),
    };
    program.items.iter().enumerate().map(fact).collect()
}

/// Operators of an item.
fn ops<'p>(program: &'p Program, item: &Item) -> impl Iterator<Item = &'p OpKind> {
    program.ops_of(item).iter().map(|op| &op.kind)
}

/// Which items read from which, and what of an item's output others read.
struct Edges {
    start: Vec<u32>,
    inputs: Vec<ItemId>,
    outputs: Vec<Vec<Columns>>,
    routers: Vec<Option<ItemId>>,
}

impl Edges {
    fn new(program: &Program) -> Edges {
        // Writers of each value, in program order.
        let mut writers: BTreeMap<u32, Vec<(usize, Columns)>> = BTreeMap::new();
        let count = program.items.len();
        let mut edges =
            Edges { start: vec![0], inputs: Vec::new(), outputs: vec![Vec::new(); count], routers: vec![None; count] };
        for (index, item) in program.items.iter().enumerate() {
            let mut producers = BTreeSet::new();
            for kind in ops(program, item) {
                for read in kind.reads() {
                    for &(producer, written) in writers.get(&read.value.0).map_or(&[][..], Vec::as_slice) {
                        if producer != index && overlap(&read, &written) {
                            producers.insert(producer);
                            let outputs = &mut edges.outputs[producer];
                            if !outputs.contains(&written) {
                                outputs.push(written);
                            }
                        }
                    }
                }
                if let OpKind::ExpertMatMul { ids, .. } = kind {
                    let router = writers.get(&ids.value.0).and_then(|list| list.first());
                    edges.routers[index] = router.filter(|r| r.0 != index).map(|r| ItemId(r.0 as u32));
                }
                kind.writes().for_each(|columns| writers.entry(columns.value.0).or_default().push((index, columns)));
            }
            edges.inputs.extend(producers.into_iter().map(|producer| ItemId(producer as u32)));
            edges.start.push(edges.inputs.len() as u32);
        }
        edges
    }
}

/// Whether two column ranges of a value touch; runs with gaps count as one range.
fn overlap(a: &Columns, b: &Columns) -> bool {
    let end = |c: &Columns| {
        u64::from(c.first_col) + u64::from(c.stride) * u64::from(c.groups.max(1) - 1) + u64::from(c.width)
    };
    u64::from(a.first_col) < end(b) && u64::from(b.first_col) < end(a)
}

struct PricedCase {
    costs: CaseCosts,
    slot_bytes: Vec<u64>,
    read_bytes: Vec<u64>,
}

/// What makes two works cost the same.
#[derive(PartialEq, Eq, Hash)]
struct MemoKey {
    backend: Backend,
    threads: u16,
    operator: Operator,
    weight_type: &'static str,
    shape: (u64, u64),
    bits: (u64, u64),
}

struct Pricer<'a> {
    program: &'a Program,
    profile: &'a Profile,
    edges: &'a Edges,
    demand: &'a Demand,
    memo: HashMap<MemoKey, f64>,
}

impl Pricer<'_> {
    fn case(&mut self, phase: Phase, context_tokens: u32) -> Result<PricedCase, PriceError> {
        let round = Round::of(phase, context_tokens, self.demand);
        let program = self.program;
        let teams: Vec<u16> = self.profile.team_sizes();
        let mut cpu_us = Vec::with_capacity(teams.len() * program.items.len());
        for &threads in &teams {
            for item in &program.items {
                cpu_us.push(self.item_us(item, &round, Backend::Cpu, threads)? as f32);
            }
        }
        let last_team_us = cpu_us[cpu_us.len() - program.items.len()..].to_vec();
        let mut priced = PricedCase {
            costs: CaseCosts {
                phase,
                context_tokens,
                gap_us: self.profile.latency.round_gap_us as f32,
                cpu_us,
                items: Vec::with_capacity(program.items.len()),
            },
            slot_bytes: Vec::with_capacity(program.items.len()),
            read_bytes: Vec::with_capacity(program.items.len()),
        };
        for (index, item) in program.items.iter().enumerate() {
            let (cost, slot_bytes) = self.item_cost(index, item, &round, last_team_us[index])?;
            priced.costs.items.push(cost);
            priced.slot_bytes.push(slot_bytes);
            priced.read_bytes.push(self.read_bytes(item, &round));
        }
        Ok(priced)
    }

    /// Everything of an item but its CPU times, and the bytes of its slot.
    fn item_cost(
        &mut self,
        index: usize,
        item: &Item,
        round: &Round,
        cpu_us: f32,
    ) -> Result<(ItemCost, u64), PriceError> {
        let read_us = self.read_bytes(item, round) as f64 / self.profile.memory.read_gb_per_s / 1000.0;
        let mut cost = ItemCost {
            dram_share: (read_us / f64::from(cpu_us).max(1e-3)).clamp(0.0, 1.0) as f32,
            ..ItemCost::default()
        };
        let Some(gpu) = &self.profile.gpu else { return Ok((cost, 0)) };
        cost.gpu_us = self.item_us(item, round, Backend::Gpu, 0)? as f32;
        let outputs = &self.edges.outputs[index];
        let bytes: u64 = outputs.iter().map(|columns| round.column_bytes(self.program, columns)).sum();
        let move_us = bytes as f64 / gpu.zero_copy_gb_per_s / 1000.0;
        cost.to_gpu_us = (self.profile.latency.to_gpu_us + move_us) as f32;
        cost.to_cpu_us = (self.profile.latency.to_cpu_us + move_us) as f32;
        // Attention and recurrences carry state that changes every round: they stay where it is.
        if item.kind == ItemKind::Embedding || !item.states.is_empty() || item.weights.is_empty() {
            return Ok((cost, 0));
        }
        let chosen = chosen(self.program, item);
        let stream = streaming(self.program, &item.weights, chosen, round, self.hits(item));
        let router = self.edges.routers[index];
        if stream.needs_router && router.is_none() {
            return Ok((cost, 0));
        }
        cost.stream_after = router.filter(|_| stream.needs_router);
        let queued_us = if stream.needs_router { chosen_us(&stream.runs) } else { 0.0 };
        let staged_us = stream.runs.iter().map(|&(count, bytes)| count * staged_us(gpu, bytes)).sum::<f64>();
        cost.stream_us = (queued_us + staged_us) as f32;
        Ok((cost, stream.slot_bytes))
    }

    /// Bytes of weights and states that an item reads in a round.
    fn read_bytes(&self, item: &Item, round: &Round) -> u64 {
        let heavy = ops(self.program, item).flat_map(|kind| works(self.program, kind, round, self.hits(item)));
        let bytes: f64 = heavy.filter(|work| work.operator != Operator::Elementwise).map(|w| w.bytes).sum();
        bytes as u64
    }

    /// Time of an item: each operator's fixed cost and its work.
    fn item_us(&mut self, item: &Item, round: &Round, backend: Backend, threads: u16) -> Result<f64, PriceError> {
        let fixed_us = match backend {
            Backend::Cpu => self.profile.latency.cpu_op_us,
            Backend::Gpu => self.profile.latency.gpu_op_us,
        };
        let mut total_us = 0.0;
        for kind in ops(self.program, item) {
            total_us += fixed_us;
            for work in works(self.program, kind, round, self.hits(item)) {
                total_us += self.work_us(&work, backend, threads)?;
            }
        }
        Ok(total_us)
    }

    /// How often the experts of the item's layer were chosen, if that was counted.
    fn hits(&self, item: &Item) -> Option<&LayerHits> {
        self.profile.routing.as_ref()?.layer(item.layer?)
    }

    fn work_us(&mut self, work: &Work, backend: Backend, threads: u16) -> Result<f64, NotMeasured> {
        let memo_key = MemoKey {
            backend,
            threads,
            operator: work.operator,
            weight_type: work.weight_type,
            shape: (work.rows, work.columns),
            bits: (work.bytes.to_bits(), work.tokens.to_bits()),
        };
        if let Some(&known) = self.memo.get(&memo_key) {
            return Ok(known);
        }
        let time_us = self.profile.time_us(&Key {
            backend,
            operator: work.operator,
            weight_type: work.weight_type,
            rows: work.rows,
            columns: work.columns,
            bytes: work.bytes,
            matrices: work.matrices,
            tokens: work.tokens,
            threads,
        })?;
        self.memo.insert(memo_key, time_us);
        Ok(time_us)
    }
}

/// Largest piece of a copy through the staging area: one part of it is filled while the other is unpacked.
const PIECE_BYTES: u64 = STAGING_BYTES / 2;

/// Transfer of a run of host weights to its slot. They lie in the CPU's panels: pieces go through the staging area, and
/// each is read once more and written in the GPU's order while the next one comes, the last one after it came.
fn staged_us(gpu: &Gpu, bytes: u64) -> f64 {
    let (pieces, rest_bytes) = (bytes / PIECE_BYTES, bytes % PIECE_BYTES);
    let copy_us = |bytes| transfer_us(&gpu.host_to_device, bytes);
    let unpack_us = |bytes: u64| 2.0 * bytes as f64 / gpu.memory_gb_per_s / 1000.0;
    let last_bytes = if rest_bytes > 0 { rest_bytes } else { bytes.min(PIECE_BYTES) };
    // A kernel slower than the link holds the pieces up.
    pieces as f64 * copy_us(PIECE_BYTES).max(unpack_us(PIECE_BYTES)) + copy_us(rest_bytes) + unpack_us(last_bytes)
}

/// What the host takes, once it knows the chosen experts, before their transfer begins, and for each of its copies:
/// they are told their sources one by one. Seen on 16 cores with an H200 under decode: 12 us, then 70 us for 8 copies
/// with 8 unpackers between them, 75 us for 8 with 3.
const CHOSEN_START_US: f64 = 12.0;
const CHOSEN_COPY_US: f64 = 8.0;

/// Time from the router's signal to the copies of the experts that it chose.
fn chosen_us(runs: &[(f64, u64)]) -> f64 {
    let copies = |&(count, bytes): &(f64, u64)| count * bytes.div_ceil(PIECE_BYTES) as f64;
    CHOSEN_START_US + CHOSEN_COPY_US * runs.iter().map(copies).sum::<f64>()
}

/// How many experts a token chooses, if the item holds routed experts.
fn chosen(program: &Program, item: &Item) -> Option<u32> {
    ops(program, item).find_map(|kind| match kind {
        OpKind::ExpertMatMul { chosen, .. } => Some(*chosen),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{SizeRate, machines::MACHINES, synthetic};

    #[test]
    fn chosen_experts_wait_for_each_copy_to_be_told() {
        // Four experts in two pieces each, and eight that are smaller than a piece.
        assert_eq!(chosen_us(&[(4.0, PIECE_BYTES + 1)]), CHOSEN_START_US + 8.0 * CHOSEN_COPY_US);
        assert_eq!(chosen_us(&[(8.0, PIECE_BYTES / 3)]), CHOSEN_START_US + 8.0 * CHOSEN_COPY_US);
        assert_eq!(chosen_us(&[]), CHOSEN_START_US);
    }

    #[test]
    fn a_transfer_takes_its_pieces_and_the_unpacking_of_the_last() {
        let mut gpu = synthetic::profile(&MACHINES[0]).gpu.unwrap();
        // 4 MiB take 200 us and more than that as long per byte, 1 MiB takes 100 us; unpacking reads and writes.
        let rate = |size_kib: u64, us: f64| SizeRate { size_kib, gb_per_s: (size_kib << 10) as f64 / us / 1000.0 };
        gpu.host_to_device = vec![rate(1024, 100.0), rate(4096, 200.0)];
        gpu.memory_gb_per_s = 2.0 * (1 << 20) as f64 / 1000.0;
        let mib = 1 << 20;
        // 1 us to unpack a MiB.
        for (bytes, us) in [(0, 0.0), (mib, 101.0), (4 * mib, 204.0), (8 * mib, 404.0), (9 * mib, 501.0)] {
            assert!((staged_us(&gpu, bytes) - us).abs() < 1e-6, "{bytes} bytes: {}", staged_us(&gpu, bytes));
        }
        gpu.memory_gb_per_s /= 100.0;
        assert!((staged_us(&gpu, 8 * mib) - 1200.0).abs() < 1e-6, "unpacking slower than the link");
    }
}
