//! The synthetic machines: datasheet figures, sources and assumptions. A table; `fixtures/devices/*.json` are its
//! profiles, and a test keeps the files equal to it.

use super::synthetic::{CpuSheet, GpuSheet, Machine};

/// All of them.
pub const MACHINES: &[Machine] = &[
    RTX3060_LAPTOP,
    RTX4090_DESKTOP,
    RTX2080_QUAD_DDR4,
    RTX3060_DESKTOP,
    RTX4060_LAPTOP,
    RTX5090_DESKTOP,
    H200_TEST,
    RTX4050_LAPTOP_16G,
    CPU_LAPTOP,
];

const TEAM_RATES: &str =
    "Read rate by team size: datasheet DRAM rate at 80 %, reached with about two thirds of the cores";
const THERMAL: &str = "No thermal or power limit: a laptop that throttles is a load regime of its plan";

/// The paper's laptop.
const RTX3060_LAPTOP: Machine = Machine {
    name: "rtx3060-laptop",
    cpu: CpuSheet {
        model: "Intel Core i7-11800H",
        classes: &[("all", 8, 2)],
        read_gb_per_s: &[(1, 14.0), (2, 25.0), (4, 37.0), (6, 40.0), (8, 41.0)],
        gop_per_core: 420.0,
        decode_gb_per_s_per_core: 8.0,
        storage_gb_per_s: 3.0,
    },
    ram_mib: 65_536,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 3060 Laptop GPU",
        compute_capability: 86,
        memory_mib: (6144, 6000),
        context_mib: (160, 60),
        memory_gb_per_s: 336.0,
        tensor_tflop_per_s: 26.0,
        link_gb_per_s: 21.0,
        link_share_while_cpu: 0.85,
        latencies_us: [3.0, 6.0, 8.0, 35.0],
    }),
    sources: &[
        "arXiv 2607.10183: RTX 3060 laptop, 6 GB, i7-11800H (its Table 1 gives no rates)",
        "Datasheets: DDR4-3200 dual channel 51.2 GB/s; GDDR6 192 bit 14 Gbit/s; GA106 laptop dense f16 26 TFLOP/s with \
         f32 accumulation; AVX-512 VNNI, 8 cores near 3.3 GHz",
    ],
    assumptions: &[
        "PCIe 4.0 x16 as the CPU offers; many laptops of this kind wire x8 (see rtx4060-laptop for such a link)",
        "64 GiB of RAM: the paper does not say, and GLM-Z1-9B in F16 needs 19",
        TEAM_RATES,
        THERMAL,
    ],
};

/// The paper's desktop.
const RTX4090_DESKTOP: Machine = Machine {
    name: "rtx4090-desktop",
    cpu: CpuSheet {
        model: "Intel Core i9-13900K",
        classes: &[("performance", 8, 2), ("efficiency", 16, 1)],
        read_gb_per_s: &[(1, 22.0), (2, 41.0), (4, 64.0), (6, 70.0), (8, 72.0)],
        gop_per_core: 320.0,
        decode_gb_per_s_per_core: 12.0,
        storage_gb_per_s: 6.0,
    },
    ram_mib: 131_072,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 4090",
        compute_capability: 89,
        memory_mib: (24_564, 23_600),
        context_mib: (400, 80),
        memory_gb_per_s: 1008.0,
        tensor_tflop_per_s: 165.0,
        link_gb_per_s: 25.1,
        link_share_while_cpu: 0.9,
        latencies_us: [2.2, 5.0, 6.5, 25.0],
    }),
    sources: &[
        "arXiv 2607.10183: a desktop with an RTX 4090 (its Table 1 names CPU and memory; no figure is at hand)",
        "arXiv 2608.16157: host to device 25.1 GB/s measured on an RTX 4090",
        "Datasheets: DDR5-5600 dual channel 89.6 GB/s; GDDR6X 384 bit; AD102 dense f16 165 TFLOP/s, f32 accumulation",
    ],
    assumptions: &[
        "CPU and memory are not known: an i9-13900K with DDR5-5600 and 128 GiB is assumed (Qwen3.5-122B needs 75)",
        "Teams use the performance cores",
        TEAM_RATES,
    ],
};

/// For comparison with public measurements; simulation only (its GPU is older than what is supported).
const RTX2080_QUAD_DDR4: Machine = Machine {
    name: "rtx2080-quad-ddr4",
    cpu: CpuSheet {
        model: "Intel Core i9-10980XE",
        classes: &[("all", 18, 2)],
        read_gb_per_s: &[(1, 12.0), (2, 23.0), (4, 44.0), (8, 72.0), (12, 80.0), (18, 82.0)],
        gop_per_core: 400.0,
        decode_gb_per_s_per_core: 8.0,
        storage_gb_per_s: 3.0,
    },
    ram_mib: 131_072,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 2080",
        compute_capability: 75,
        memory_mib: (8192, 7800),
        context_mib: (180, 60),
        memory_gb_per_s: 448.0,
        tensor_tflop_per_s: 40.0,
        link_gb_per_s: 12.3,
        link_share_while_cpu: 0.95,
        latencies_us: [3.0, 6.0, 8.0, 35.0],
    }),
    sources: &[
        "Datasheets: DDR4-3200 quad channel 102.4 GB/s; GDDR6 256 bit 14 Gbit/s; TU104 dense f16 40 TFLOP/s with f32 \
         accumulation; PCIe 3.0 x16 near 12.3 GB/s",
    ],
    assumptions: &["Simulation only: sm_75 is below the supported sm_80", "CPU assumed", TEAM_RATES],
};

const RTX3060_DESKTOP: Machine = Machine {
    name: "rtx3060-desktop",
    cpu: CpuSheet {
        model: "AMD Ryzen 5 5600X",
        classes: &[("all", 6, 2)],
        read_gb_per_s: &[(1, 20.0), (2, 33.0), (4, 40.0), (6, 41.0)],
        gop_per_core: 280.0,
        decode_gb_per_s_per_core: 9.0,
        storage_gb_per_s: 3.5,
    },
    ram_mib: 65_536,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 3060",
        compute_capability: 86,
        memory_mib: (12_288, 11_700),
        context_mib: (200, 60),
        memory_gb_per_s: 360.0,
        tensor_tflop_per_s: 25.5,
        link_gb_per_s: 25.0,
        link_share_while_cpu: 0.85,
        latencies_us: [2.8, 6.0, 7.5, 30.0],
    }),
    sources: &[
        "Datasheets: DDR4-3200 dual channel 51.2 GB/s; GDDR6 192 bit 15 Gbit/s; GA106 dense f16 25.5 TFLOP/s with f32 \
         accumulation; PCIe 4.0 x16",
    ],
    assumptions: &["Link as measured on other PCIe 4.0 x16 cards (25 GB/s)", TEAM_RATES],
};

const RTX4060_LAPTOP: Machine = Machine {
    name: "rtx4060-laptop",
    cpu: CpuSheet {
        model: "Intel Core i7-13700H",
        classes: &[("performance", 6, 2), ("efficiency", 8, 1)],
        read_gb_per_s: &[(1, 18.0), (2, 33.0), (4, 55.0), (6, 60.0)],
        gop_per_core: 280.0,
        decode_gb_per_s_per_core: 10.0,
        storage_gb_per_s: 5.0,
    },
    ram_mib: 32_768,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 4060 Laptop GPU",
        compute_capability: 89,
        memory_mib: (8188, 7800),
        context_mib: (200, 60),
        memory_gb_per_s: 256.0,
        tensor_tflop_per_s: 29.0,
        link_gb_per_s: 11.8,
        link_share_while_cpu: 0.95,
        latencies_us: [2.6, 6.0, 8.0, 35.0],
    }),
    sources: &[
        "arXiv 2608.16157: host to device 11.8 GB/s measured on an RTX 4060 laptop (PCIe x8)",
        "Datasheets: DDR5-4800 dual channel 76.8 GB/s; GDDR6 128 bit 16 Gbit/s; AD107 near 2.35 GHz",
    ],
    assumptions: &["Teams use the performance cores", TEAM_RATES, THERMAL],
};

const RTX5090_DESKTOP: Machine = Machine {
    name: "rtx5090-desktop",
    cpu: CpuSheet {
        model: "AMD Ryzen 9 9950X",
        classes: &[("all", 16, 2)],
        read_gb_per_s: &[(1, 30.0), (2, 48.0), (4, 64.0), (8, 70.0), (16, 72.0)],
        gop_per_core: 1100.0,
        decode_gb_per_s_per_core: 14.0,
        storage_gb_per_s: 7.0,
    },
    ram_mib: 131_072,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 5090",
        compute_capability: 120,
        memory_mib: (32_607, 31_500),
        context_mib: (500, 100),
        memory_gb_per_s: 1792.0,
        tensor_tflop_per_s: 209.0,
        link_gb_per_s: 52.7,
        link_share_while_cpu: 0.7,
        latencies_us: [2.0, 5.0, 6.0, 22.0],
    }),
    sources: &[
        "arXiv 2608.16157: host to device 52.7 GB/s measured on an RTX 5090",
        "Datasheets: DDR5-5600 dual channel 89.6 GB/s; GDDR7 512 bit 28 Gbit/s; dense f16 209 TFLOP/s with f32 \
         accumulation; AVX-512 VNNI with full-width units",
    ],
    assumptions: &["CPU and memory assumed", TEAM_RATES],
};

/// Measured in part: the machine of the recorded benchmarks.
const H200_TEST: Machine = Machine {
    name: "h200-16core",
    cpu: CpuSheet {
        model: "16 cores of a server CPU with AVX-512 VNNI",
        classes: &[("all", 16, 1)],
        read_gb_per_s: &[(1, 11.0), (2, 22.0), (4, 42.0), (8, 81.0), (12, 107.0), (16, 143.0)],
        gop_per_core: 700.0,
        decode_gb_per_s_per_core: 9.5,
        storage_gb_per_s: 3.0,
    },
    ram_mib: 131_072,
    gpu: Some(GpuSheet {
        model: "NVIDIA H200",
        compute_capability: 90,
        memory_mib: (143_771, 143_000),
        context_mib: (520, 100),
        memory_gb_per_s: 4800.0,
        tensor_tflop_per_s: 989.0,
        link_gb_per_s: 55.0,
        link_share_while_cpu: 0.84,
        latencies_us: [3.1, 4.3, 6.6, 25.0],
    }),
    sources: &[
        "Measured: link 55 GB/s for pieces of 8 MiB and more, pageable 9.5 GB/s; launch 3.1 us, launch to mapped flag \
         seen by the CPU 6.6 us, wait on a mapped flag 4.3 us; host reads of registered huge pages 81, 107, 143 GB/s \
         with 8, 12, 16 threads; 108 + 46 GB/s with the copy engine streaming",
        "Datasheet: 4.8 TB/s, dense f16 989 TFLOP/s",
    ],
    assumptions: &["Read rates below 8 threads are interpolated", "CPU int8 rate assumed"],
};

const RTX4050_LAPTOP_16G: Machine = Machine {
    name: "rtx4050-laptop-16g",
    cpu: CpuSheet {
        model: "Intel Core i5-13500H",
        classes: &[("performance", 4, 2), ("efficiency", 8, 1)],
        read_gb_per_s: &[(1, 18.0), (2, 33.0), (4, 55.0)],
        gop_per_core: 280.0,
        decode_gb_per_s_per_core: 14.0,
        storage_gb_per_s: 3.5,
    },
    ram_mib: 16_384,
    gpu: Some(GpuSheet {
        model: "NVIDIA GeForce RTX 4050 Laptop GPU",
        compute_capability: 89,
        memory_mib: (6141, 5800),
        context_mib: (200, 60),
        memory_gb_per_s: 192.0,
        tensor_tflop_per_s: 22.0,
        link_gb_per_s: 11.8,
        link_share_while_cpu: 0.95,
        latencies_us: [2.6, 6.0, 8.0, 35.0],
    }),
    sources: &["Datasheets: DDR5-4800 dual channel 76.8 GB/s; GDDR6 96 bit 16 Gbit/s; AD107 near 2.2 GHz; PCIe 4.0 x8"],
    assumptions: &[
        "Link as measured on another PCIe 4.0 x8 laptop",
        "Teams use the performance cores",
        TEAM_RATES,
        THERMAL,
    ],
};

const CPU_LAPTOP: Machine = Machine {
    name: "cpu-laptop",
    cpu: CpuSheet {
        model: "AMD Ryzen 7 7840U",
        classes: &[("all", 8, 2)],
        read_gb_per_s: &[(1, 24.0), (2, 42.0), (4, 60.0), (6, 66.0), (8, 68.0)],
        gop_per_core: 560.0,
        decode_gb_per_s_per_core: 11.0,
        storage_gb_per_s: 3.5,
    },
    ram_mib: 32_768,
    gpu: None,
    sources: &["Datasheets: LPDDR5-6400 128 bit 102.4 GB/s; Zen 4 with AVX-512 VNNI on 256-bit units near 4.2 GHz"],
    assumptions: &["Read rate 68 GB/s: such chips reach two thirds of the datasheet rate from the CPU", THERMAL],
};
