//! Profiles of machines that nobody here has, calculated from datasheet figures and stated efficiencies.
//!
//! The model is a roofline per operator: time = √(memory² + compute²), where the memory side is the bandwidth that
//! the threads reach and the compute side the multiplications of the weight bytes. What it cannot know (cache effects,
//! odd shapes, thermal limits) is left out and said in the profile's assumptions. Next: `machines.rs`.

use super::*;

/// Datasheet figures of a machine and the fractions of them that kernels are taken to reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Profile name.
    pub name: &'static str,
    /// CPU.
    pub cpu: CpuSheet,
    /// Installed memory in MiB.
    pub ram_mib: u64,
    /// GPU, if any.
    pub gpu: Option<GpuSheet>,
    /// Where the figures come from.
    pub sources: &'static [&'static str],
    /// What was assumed.
    pub assumptions: &'static [&'static str],
}

/// CPU figures.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuSheet {
    /// Name.
    pub model: &'static str,
    /// (class, cores, threads per core), fastest first; teams use the first class, or all when it is the only one.
    pub classes: &'static [(&'static str, u16, u16)],
    /// Team sizes with the plain read rate that each reaches.
    pub read_gb_per_s: &'static [(u16, f64)],
    /// int8 multiply-adds per core and second, in 10⁹ operations (two per multiply-add).
    pub gop_per_core: f64,
    /// Weight bytes that one core decodes and multiplies for one token, in GB/s (Q4_K).
    pub decode_gb_per_s_per_core: f64,
    /// Sequential read of the disk.
    pub storage_gb_per_s: f64,
}

/// GPU figures.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSheet {
    /// Name.
    pub model: &'static str,
    /// `8.6` is 86.
    pub compute_capability: u32,
    /// Memory, and what a desktop leaves free of it, in MiB.
    pub memory_mib: (u64, u64),
    /// Context and kernels in MiB.
    pub context_mib: (u64, u64),
    /// Datasheet memory bandwidth.
    pub memory_gb_per_s: f64,
    /// Dense f16 tensor rate with f32 accumulation.
    pub tensor_tflop_per_s: f64,
    /// Link rate for large pieces, as measured on such machines.
    pub link_gb_per_s: f64,
    /// Link rate while the CPU reads, over the rate alone.
    pub link_share_while_cpu: f64,
    /// Latencies: GPU operator, to GPU, to CPU, blocking switch.
    pub latencies_us: [f64; 4],
}

/// Fraction of datasheet memory bandwidth that decode kernels reach on the GPU.
const GPU_DECODE_FRACTION: f64 = 0.75;
/// Fraction of the tensor rate that prefill kernels reach.
const GPU_TENSOR_FRACTION: f64 = 0.45;
/// Fraction of the tensor rate that attention reaches.
const GPU_ATTENTION_FRACTION: f64 = 0.25;
/// Fraction of a plain read that CPU decode kernels reach when memory limits them.
const CPU_READ_FRACTION: f64 = 0.95;
/// Fraction of the int8 rate that CPU prefill kernels reach.
const CPU_GEMM_FRACTION: f64 = 0.5;
/// What the CPU and the link read together, over what the CPU reads alone: 108 + 46 GB/s of 143 on the H200 machine.
const SHARED_DRAM_FRACTION: f64 = 1.077;

/// (type, values per block, bytes per block, decode speed of a core against Q4_K in bytes).
const WEIGHT_TYPES: &[(&str, f64, f64, f64)] = &[
    ("F32", 1.0, 4.0, 1.8),
    ("F16", 1.0, 2.0, 1.6),
    ("BF16", 1.0, 2.0, 1.6),
    ("Q4_0", 32.0, 18.0, 1.0),
    ("Q4_1", 32.0, 20.0, 1.05),
    ("Q5_0", 32.0, 22.0, 0.85),
    ("Q5_1", 32.0, 24.0, 0.85),
    ("Q8_0", 32.0, 34.0, 1.7),
    ("Q2_K", 256.0, 84.0, 0.6),
    ("Q3_K", 256.0, 110.0, 0.6),
    ("Q4_K", 256.0, 144.0, 1.0),
    ("Q5_K", 256.0, 176.0, 0.9),
    ("Q6_K", 256.0, 210.0, 0.9),
    ("IQ4_NL", 32.0, 18.0, 0.9),
    ("IQ4_XS", 256.0, 136.0, 0.9),
    ("MXFP4", 32.0, 17.0, 0.9),
];

/// Token counts of the curves.
const TOKENS: &[u32] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Query rows per key head: tokens times up to 32 heads.
const ATTENTION_ROWS: &[u32] = &[1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 131_072];

/// The profile of a machine.
pub fn profile(machine: &Machine) -> Profile {
    let teams = machine.cpu.read_gb_per_s;
    let mut curves = Vec::new();
    for &(threads, read_gb_per_s) in teams {
        cpu_curves(&machine.cpu, threads, read_gb_per_s, &mut curves);
    }
    if let Some(gpu) = &machine.gpu {
        gpu_curves(gpu, &mut curves);
    }
    let class = |&(name, cores, threads_per_core): &(&str, u16, u16)| CoreClass {
        name: name.to_string(),
        cores,
        threads_per_core,
    };
    Profile {
        schema_version: SCHEMA_VERSION,
        routing: None,
        name: machine.name.to_string(),
        provenance: provenance(machine),
        cpu: Cpu {
            model: machine.cpu.model.to_string(),
            core_classes: machine.cpu.classes.iter().map(class).collect(),
        },
        memory: Memory {
            total_mib: machine.ram_mib,
            available_mib: machine.ram_mib * 85 / 100,
            pinned_limit_mib: machine.ram_mib * 75 / 100,
            read_gb_per_s: teams.iter().map(|team| team.1).fold(0.0, f64::max),
            storage_gb_per_s: machine.cpu.storage_gb_per_s,
        },
        gpu: machine.gpu.as_ref().map(gpu_section),
        latency: latency(machine),
        contention: teams.iter().map(|&team| contention(team, machine)).collect(),
        curves,
        points: Vec::new(),
    }
}

fn provenance(machine: &Machine) -> Provenance {
    let text = |lines: &[&str]| lines.iter().map(ToString::to_string).collect();
    let fractions = [
        ("GPU memory bandwidth, decode kernels", GPU_DECODE_FRACTION),
        ("GPU dense f16 tensor rate, prefill kernels", GPU_TENSOR_FRACTION),
        ("GPU dense f16 tensor rate, attention", GPU_ATTENTION_FRACTION),
        ("plain multi-threaded read, CPU decode kernels", CPU_READ_FRACTION),
        ("CPU int8 rate, prefill kernels", CPU_GEMM_FRACTION),
    ];
    Provenance {
        kind: ProfileKind::Synthetic,
        sources: text(machine.sources),
        assumptions: text(machine.assumptions),
        efficiencies: fractions.map(|(of, fraction)| Efficiency { of: of.to_string(), fraction }).to_vec(),
    }
}

/// Rounds to four significant digits: what such figures are worth, and short JSON.
fn short(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Link rates by size: a fixed cost of 8 µs per piece on top of the large-piece rate.
fn size_rates(gb_per_s: f64) -> Vec<SizeRate> {
    let rate = |size_kib: u64| {
        let bytes = size_kib as f64 * 1024.0;
        SizeRate { size_kib, gb_per_s: short(bytes / (bytes / gb_per_s + 8000.0)) }
    };
    [4, 64, 1024, 8192, 65536, 262_144].map(rate).to_vec()
}

fn gpu_section(sheet: &GpuSheet) -> Gpu {
    Gpu {
        model: sheet.model.to_string(),
        compute_capability: sheet.compute_capability,
        link: None,
        driver: None,
        memory_mib: sheet.memory_mib.0,
        free_mib: sheet.memory_mib.1,
        context_mib: sheet.context_mib.0,
        kernels_mib: sheet.context_mib.1,
        memory_gb_per_s: short(sheet.memory_gb_per_s * 0.9),
        host_to_device: size_rates(sheet.link_gb_per_s),
        device_to_host: size_rates(sheet.link_gb_per_s),
        pageable_gb_per_s: short((sheet.link_gb_per_s * 0.4).min(9.5)),
        zero_copy_gb_per_s: short(sheet.link_gb_per_s * 0.8),
    }
}

fn latency(machine: &Machine) -> Latency {
    let [gpu_op_us, to_gpu_us, to_cpu_us, blocking_switch_us] =
        machine.gpu.as_ref().map_or([0.0; 4], |gpu| gpu.latencies_us);
    Latency { cpu_op_us: 4.0, gpu_op_us, to_gpu_us, to_cpu_us, blocking_switch_us, round_gap_us: 60.0 }
}

fn contention(team: (u16, f64), machine: &Machine) -> Contention {
    let (threads, alone) = team;
    let most = machine.cpu.read_gb_per_s.iter().map(|team| team.1).fold(0.0, f64::max);
    let (link_alone, link_share) =
        machine.gpu.as_ref().map_or((1.0, 1.0), |g| (g.link_gb_per_s, g.link_share_while_cpu));
    let link = link_alone * link_share;
    Contention {
        threads,
        cpu_alone_gb_per_s: short(alone),
        cpu_while_link_gb_per_s: short(alone.min((most * SHARED_DRAM_FRACTION - link).max(alone * 0.3))),
        link_alone_gb_per_s: short(link_alone),
        link_while_cpu_gb_per_s: short(link),
    }
}

/// Roofline of a byte: nanoseconds from a memory rate in GB/s and a compute time.
fn rate(memory_gb_per_s: f64, compute_ns_per_byte: f64) -> f64 {
    let memory_ns = 1.0 / memory_gb_per_s;
    short(1.0 / (memory_ns * memory_ns + compute_ns_per_byte * compute_ns_per_byte).sqrt())
}

fn cpu_curves(cpu: &CpuSheet, threads: u16, read_gb_per_s: f64, curves: &mut Vec<Curve>) {
    let cores = f64::from(threads);
    let gflop = cores * cpu.gop_per_core * CPU_GEMM_FRACTION;
    let mut add = |operator, weight_type: &str, tokens: &[u32], rates: Vec<f64>| {
        curves.push(Curve {
            backend: Backend::Cpu,
            operator,
            weight_type: weight_type.to_string(),
            threads,
            tokens: tokens.to_vec(),
            gb_per_s: rates,
        });
    };
    for &(weight_type, values, bytes, decode) in WEIGHT_TYPES {
        let memory = (read_gb_per_s * CPU_READ_FRACTION).min(cores * cpu.decode_gb_per_s_per_core * decode);
        let flop_per_byte = 2.0 * values / bytes;
        // Float weights use float units: a quarter of the int8 rate.
        let float_share = if matches!(weight_type, "F32" | "F16" | "BF16") { 0.25 } else { 1.0 };
        let at = |&tokens: &u32| rate(memory, f64::from(tokens) * flop_per_byte / (gflop * float_share));
        let rates: Vec<f64> = TOKENS.iter().map(at).collect();
        add(Operator::Matmul, weight_type, TOKENS, rates.clone());
        add(Operator::ExpertMatmul, weight_type, TOKENS, rates.iter().map(|&rate| short(rate * 0.9)).collect());
    }
    for (cache_type, flop_per_byte) in [("F16", 1.0), ("F32", 0.5)] {
        let memory = (read_gb_per_s * 0.8).min(cores * cpu.decode_gb_per_s_per_core);
        let at = |&rows: &u32| rate(memory, f64::from(rows) * flop_per_byte / (gflop * 0.15));
        add(Operator::Attention, cache_type, ATTENTION_ROWS, ATTENTION_ROWS.iter().map(at).collect());
    }
    let at = |&tokens: &u32| rate(read_gb_per_s * 0.8, f64::from(tokens) * 2.0 / (gflop * 0.1));
    add(Operator::DeltaNet, "F32", TOKENS, TOKENS.iter().map(at).collect());
    let elementwise = short(read_gb_per_s.min(cores * 8.0));
    add(Operator::Elementwise, "F32", &[1, 4096], vec![elementwise; 2]);
}

fn gpu_curves(gpu: &GpuSheet, curves: &mut Vec<Curve>) {
    let memory = gpu.memory_gb_per_s * GPU_DECODE_FRACTION;
    let gflop = gpu.tensor_tflop_per_s * 1000.0;
    let mut add = |operator, weight_type: &str, tokens: &[u32], rates: Vec<f64>| {
        curves.push(Curve {
            backend: Backend::Gpu,
            operator,
            weight_type: weight_type.to_string(),
            threads: 0,
            tokens: tokens.to_vec(),
            gb_per_s: rates,
        });
    };
    for &(weight_type, values, bytes, decode) in WEIGHT_TYPES {
        let flop_per_byte = 2.0 * values / bytes;
        // Blocks that are harder to decode cost a little bandwidth.
        let memory = memory * (0.85 + 0.15 * decode.min(1.0));
        // Small batches fill the tensor units badly: 8 tokens are the least that a tile computes.
        let padded = |tokens: u32| f64::from(tokens.max(8));
        let at = |&tokens: &u32| rate(memory, padded(tokens) * flop_per_byte / (gflop * GPU_TENSOR_FRACTION));
        let rates: Vec<f64> = TOKENS.iter().map(at).collect();
        add(Operator::Matmul, weight_type, TOKENS, rates.clone());
        add(Operator::ExpertMatmul, weight_type, TOKENS, rates.iter().map(|&rate| short(rate * 0.85)).collect());
    }
    for (cache_type, flop_per_byte) in [("F16", 1.0), ("F32", 0.5)] {
        let compute = |rows: f64| rows * 2.0 * flop_per_byte / (gflop * GPU_ATTENTION_FRACTION);
        let at = |&rows: &u32| rate(memory * 0.7, compute(f64::from(rows)));
        add(Operator::Attention, cache_type, ATTENTION_ROWS, ATTENTION_ROWS.iter().map(at).collect());
    }
    let at = |&tokens: &u32| rate(memory * 0.6, f64::from(tokens) * 4.0 / (gflop * 0.05));
    add(Operator::DeltaNet, "F32", TOKENS, TOKENS.iter().map(at).collect());
    add(Operator::Elementwise, "F32", &[1, 4096], vec![short(memory * 0.8); 2]);
}
