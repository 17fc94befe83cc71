//! Measures products against this machine's bounds, on the spot: GEMV against a plain read of the same rotating
//! buffers by the same threads, GEMM against dot products or multiply-adds in registers.
//!
//! `cargo run --release -p kernels --example matmul_speed -- [gemv|cached|gemm|pack] [TYPE,TYPE] [threads]
//! [tokens,tokens] [isa]` Bounds and kernels alternate; medians of their ratios are printed.

use std::sync::Barrier;
use std::time::Instant;

use kernels::cases::random_weights;
use kernels::cpu::Isa;
use kernels::cpu::bounds::{f32_fma_peak, int8_dot_peak, plain_read};
use kernels::cpu::matmul::{Layout, Matrix, Output, Product, act_row_bytes, matmul, prepare_act};
use kernels::quant::{WeightType, pack_panels, packed_bytes, panels};

const GIB: usize = 1 << 30;
const REPEATS: usize = 7;

/// What to measure, from the command line.
struct Options {
    types: Vec<WeightType>,
    threads: usize,
    tokens: Vec<usize>,
    isa: Isa,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.to_owned());
    let mode = arg(0, "gemv");
    let options = Options {
        types: parse_types(&arg(1, "Q4_0,Q4_1,Q8_0,Q4_K,Q5_K,Q6_K,MXFP4,IQ4_XS,F16,BF16")),
        threads: arg(2, "2").parse().expect("a number of threads"),
        tokens: arg(3, if mode == "gemm" { "512" } else { "1" })
            .split(',')
            .map(|t| t.parse().expect("tokens"))
            .collect(),
        isa: Isa::from_name(&arg(4, Isa::detect().name())).expect("an ISA"),
    };
    println!("{} threads, {}", options.threads, options.isa.name());
    match mode.as_str() {
        "gemv" => gemv(&options, 4096, GIB),
        "cached" => gemv(&options, 32 * options.threads, 0),
        "gemm" => gemm(&options),
        "pack" => pack(&options),
        other => eprintln!("unknown mode {other}: gemv, cached, gemm or pack"),
    }
}

fn parse_types(list: &str) -> Vec<WeightType> {
    let all = || WeightType::ALL.to_vec();
    let find = |name: &str| WeightType::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(name));
    if list == "all" { all() } else { list.split(',').map(|name| find(name).expect("a type")).collect() }
}

/// Anonymous memory in huge pages.
struct Memory {
    start: *mut u8,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let len = len.next_multiple_of(2 << 20);
        // SAFETY: a fresh private mapping that nothing else knows.
        let start = unsafe {
            let start =
                mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                    .expect("memory");
            madvise(start, len, Advice::LinuxHugepage).expect("huge pages");
            start
        };
        Memory { start: start.cast(), len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` readable and writable bytes, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { rustix::mm::munmap(self.start.cast(), self.len).expect("unmapping") };
    }
}

/// Runs `work(thread)` on each thread at once and returns the processor time of the slowest, in seconds: other
/// programs on the machine then disturb less than wall time would.
fn timed(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let spawn = |thread| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                let start = thread_seconds();
                work(thread);
                thread_seconds() - start
            })
        };
        let handles: Vec<_> = (0..threads).map(spawn).collect();
        handles.into_iter().map(|h| h.join().expect("a thread")).fold(0.0, f64::max)
    })
}

fn thread_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn share(n: usize, thread: usize, threads: usize) -> std::ops::Range<usize> {
    n * thread / threads..n * (thread + 1) / threads
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Packed random weights, and prepared activations for some tokens.
fn operands(ty: WeightType, rows: usize, cols: usize, tokens: usize) -> (Vec<u8>, Vec<u8>) {
    let raw = random_weights(ty, rows, cols, 1);
    let mut packed = vec![0; packed_bytes(ty, rows, cols).expect("a shape")];
    pack_panels(ty, &raw, rows, cols, 0..panels(rows), &mut packed).expect("a shape");
    let row = act_row_bytes(ty, cols).expect("a shape");
    let mut acts = vec![0; row * tokens];
    for (t, act) in acts.chunks_exact_mut(row).enumerate() {
        let x: Vec<f32> = (0..cols).map(|c| ((c * 7 + t * 13) % 31) as f32 - 15.0).collect();
        prepare_act(Isa::detect(), ty, &x, act).expect("a shape");
    }
    (packed, acts)
}

/// Passes over a buffer of at least `bytes`; a small one stays in the second cache.
fn gemv(options: &Options, rows: usize, bytes: usize) {
    let cols = 4096;
    let most = options.tokens.iter().copied().max().expect("tokens");
    println!("GEMV {rows}x{cols} rotating through {} MiB; GB/s read plainly, GB/s of the product, ratio", bytes >> 20);
    for &ty in &options.types {
        let (packed, acts) = operands(ty, rows, cols, most);
        let count = bytes.div_ceil(packed.len()).max(1);
        let mut memory = Memory::new(count * packed.len());
        for place in memory.bytes()[..count * packed.len()].chunks_exact_mut(packed.len()) {
            place.copy_from_slice(&packed);
        }
        let weights: &[u8] = &memory.bytes()[..count * packed.len()];
        for &tokens in &options.tokens {
            let mut out = vec![0.0; rows * tokens];
            let out = Output::new(&mut out, rows);
            let product = |bytes| {
                let matrix = Matrix::new(ty, Layout::Panel16, rows, cols, bytes).expect("a matrix");
                Product::new(matrix, &acts, tokens, out).expect("a product")
            };
            report_gemv(options, weights, packed.len(), ty, tokens, &product);
        }
    }
}

fn report_gemv<'a>(
    options: &Options,
    weights: &'a [u8],
    each: usize,
    ty: WeightType,
    tokens: usize,
    product: &(dyn Fn(&'a [u8]) -> Product<'a> + Sync),
) {
    let threads = options.threads;
    let passes = (GIB / 4).div_ceil(weights.len());
    let panels = product(&weights[..each]).weights().panels();
    let matrices = || (0..passes).flat_map(|_| weights.chunks_exact(each));
    let (mut reads, mut products) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        reads.push(timed(threads, |thread| {
            let part = share(panels, thread, threads);
            for bytes in matrices() {
                let panel_bytes = each / panels;
                std::hint::black_box(plain_read(options.isa, &bytes[part.start * panel_bytes..part.end * panel_bytes]));
            }
        }));
        products.push(timed(threads, |thread| {
            for bytes in matrices() {
                let product = product(bytes);
                let part = share(product.weights().panels(), thread, threads);
                // SAFETY: threads have disjoint panels.
                unsafe { matmul(options.isa, &product, part) }.expect("panels of the matrix");
            }
        }));
    }
    let ratios = reads.iter().zip(&products).map(|(r, p)| r / p).collect();
    let gb = (passes * weights.len()) as f64 / 1e9;
    println!(
        "{:7} {tokens:3} tokens  read {:6.2}  product {:6.2}  ratio {:.3}",
        ty.name(),
        gb / median(reads),
        gb / median(products),
        median(ratios)
    );
}

fn gemm(options: &Options) {
    let (rows, cols) = (2048, 2048);
    println!("GEMM {rows}x{cols}; GOP/s of the bound, of the product, ratio");
    for &ty in &options.types {
        for &tokens in &options.tokens {
            let (packed, acts) = operands(ty, rows, cols, tokens);
            let mut memory = Memory::new(packed.len() + acts.len() + 64);
            let (weights, rest) = memory.bytes().split_at_mut(packed.len());
            weights.copy_from_slice(&packed);
            rest[..acts.len()].copy_from_slice(&acts);
            let mut out = vec![0.0; rows * tokens];
            let matrix = Matrix::new(ty, Layout::Panel16, rows, cols, weights).expect("a matrix");
            let product = Product::new(matrix, rest, tokens, Output::new(&mut out, rows)).expect("a product");
            report_gemm(options, &product, ty, tokens, 2.0 * (rows * cols * tokens) as f64);
        }
    }
}

fn report_gemm(options: &Options, product: &Product, ty: WeightType, tokens: usize, operations: f64) {
    let threads = options.threads;
    let peak = if ty.is_plain() { f32_fma_peak } else { int8_dot_peak };
    let rounds = (operations / threads as f64 / peak(options.isa, 1).operations as f64) as u32;
    let (mut bounds, mut products) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        bounds.push(timed(threads, |_| {
            std::hint::black_box(peak(options.isa, rounds));
        }));
        products.push(timed(threads, |thread| {
            let part = share(product.weights().panels(), thread, threads);
            // SAFETY: threads have disjoint panels.
            unsafe { matmul(options.isa, product, part) }.expect("panels of the matrix");
        }));
    }
    let ratios = bounds.iter().zip(&products).map(|(b, p)| b / p).collect();
    let gop = operations / 1e9;
    println!(
        "{:7} {tokens:4} tokens  bound {:7.1}  product {:7.1}  ratio {:.3}",
        ty.name(),
        gop / median(bounds),
        gop / median(products),
        median(ratios)
    );
}

fn pack(options: &Options) {
    let (rows, cols) = (4096, 4096);
    println!("packing {rows}x{cols}; GB/s");
    for &ty in &options.types {
        let raw = random_weights(ty, rows, cols, 1);
        let mut packed = vec![0; packed_bytes(ty, rows, cols).expect("a shape")];
        let times = (0..REPEATS).map(|_| {
            let start = Instant::now();
            pack_panels(ty, &raw, rows, cols, 0..panels(rows), &mut packed).expect("a shape");
            start.elapsed().as_secs_f64()
        });
        println!("{:7} {:6.2}", ty.name(), raw.len() as f64 / 1e9 / median(times.collect()));
    }
}
