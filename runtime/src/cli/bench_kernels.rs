//! `ats-run bench --kernels`: products of each weight type against what this machine can do at all, both measured in
//! turn on the spot; a share is the median of their ratios. Decode (1 to 4 and 8 tokens) runs through matrices that no
//! cache holds, against a plain read of the same memory by the same threads in the same blocks; prefill (512 tokens)
//! against 8-bit dot products, or multiply-adds for plain numbers, in registers. With 8 tokens the bound is the lower
//! of 80 % of the read and half of the multiplications.
//! Not here: whole models (`bench.rs`), tracking changes (the benches of crate `kernels`, on the same cases).

use super::Failure;
use super::bench::Format;
use crate::exec::Grain;
use crate::{Error, machine};
use device::memory::HostRegion;
use device::team::{Team, Worker};
use kernels::KernelError;
use kernels::cases::{DECODE_TOKENS, PREFILL_TOKENS, random_weights};
use kernels::cpu::Isa;
use kernels::cpu::bounds::{f32_fma_peak, int8_dot_peak, plain_read};
use kernels::cpu::matmul::{Layout, Matrix, Output, Product, act_row_bytes, matmul, prepare_act};
use kernels::quant::{WeightType, pack_panels, packed_bytes, panels};
use std::hint::black_box;
use std::io::Write;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Most tokens that only the read bounds, ...
const READ_TOKENS: usize = 4;
/// ... and that the read can bound at all.
const DECODE_TOKENS_MOST: usize = 8;

/// Times that bound and product take turns in a repetition: a pass takes some milliseconds only.
const TURNS: usize = 4;

/// How large the operands are, and how often each case runs.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Rows and columns of a decode matrix.
    pub decode: [usize; 2],
    /// Memory that the decode matrices cover.
    pub rotation_bytes: usize,
    /// Rows and columns of the prefill matrix.
    pub prefill: [usize; 2],
    /// Runs of each case and of its bound.
    pub repetitions: usize,
}

impl Sizes {
    /// For figures.
    pub const FULL: Sizes =
        Sizes { decode: [4096, 4096], rotation_bytes: 1 << 30, prefill: [2048, 2048], repetitions: 5 };
}

/// The share of each bound that a product should reach.
const READ_AIM: f64 = 0.8;
const MULTIPLY_AIM: f64 = 0.5;

/// What a case is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A plain read of the weights.
    Read,
    /// Multiplications in registers.
    Multiply,
}

impl Bound {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Read => "read",
            Bound::Multiply => "multiply",
        }
    }
}

/// A case's figures.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Weights.
    pub ty: WeightType,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Tokens.
    pub tokens: usize,
    /// Weight bytes by time, in 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Multiplications and additions, in 10⁹ per second.
    pub gop_per_s: f64,
    /// The lower bound.
    pub bound: Bound,
    /// How much of that was reached.
    pub fraction: f64,
}

/// Measures each type on `threads` threads; `on_figure` hears of every case as it is done.
/// Errors: no threads, no memory.
pub fn measure(
    types: &[WeightType],
    (threads, isa): (usize, Isa),
    sizes: Sizes,
    on_figure: &mut dyn FnMut(&Figure),
) -> Result<(), Failure> {
    let mut bench = Bench { team: machine::team(threads).map_err(Failure::from)?, isa, sizes };
    for &ty in types {
        let matrices = Matrices::new(ty, sizes.decode, sizes.rotation_bytes)?;
        for tokens in DECODE_TOKENS {
            on_figure(&bench.case(&matrices, tokens)?);
        }
        drop(matrices);
        on_figure(&bench.case(&Matrices::new(ty, sizes.prefill, 0)?, PREFILL_TOKENS)?);
    }
    Ok(())
}

/// Packed matrices of one type and shape, one after the other in huge pages: copies of one.
struct Matrices {
    ty: WeightType,
    shape: [usize; 2],
    region: HostRegion,
    matrix_bytes: usize,
}

impl Matrices {
    fn new(ty: WeightType, [rows, cols]: [usize; 2], bytes: usize) -> Result<Self, Failure> {
        let raw = random_weights(ty, rows, cols, 1);
        let matrix_bytes = packed_bytes(ty, rows, cols).map_err(Error::from)?;
        let count = bytes.div_ceil(matrix_bytes).max(1);
        let mut region = HostRegion::new(count * matrix_bytes).map_err(Error::from)?;
        let (first, rest) = region.as_mut_slice().split_at_mut(matrix_bytes);
        pack_panels(ty, &raw, rows, cols, 0..panels(rows), first).map_err(Error::from)?;
        rest.chunks_exact_mut(matrix_bytes).for_each(|copy| copy.copy_from_slice(first));
        Ok(Self { ty, shape: [rows, cols], region, matrix_bytes })
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.region.as_slice().chunks_exact(self.matrix_bytes)
    }
}

/// The products of a case, with a result each.
struct Chain<'a> {
    matrices: &'a Matrices,
    tokens: usize,
    products: Vec<Product<'a>>,
}

/// Operands of a chain.
struct Operands {
    acts: Vec<u8>,
    out: Vec<f32>,
}

impl<'a> Chain<'a> {
    fn new(matrices: &'a Matrices, tokens: usize, operands: &'a mut Operands) -> Result<Self, Failure> {
        let [rows, cols] = matrices.shape;
        let product = |(bytes, out)| {
            let matrix = Matrix::new(matrices.ty, Layout::Panel16, rows, cols, bytes)?;
            Product::new(matrix, &operands.acts, tokens, Output::new(out, rows))
        };
        let products = matrices.each().zip(operands.out.chunks_exact_mut(rows * tokens)).map(product);
        Ok(Self { matrices, tokens, products: products.collect::<Result<_, _>>().map_err(Error::from)? })
    }

    fn bytes(&self) -> f64 {
        self.matrices.each().map(<[u8]>::len).sum::<usize>() as f64
    }

    /// Multiplications and additions.
    fn operations(&self) -> f64 {
        2.0 * (self.matrices.shape.iter().product::<usize>() * self.tokens * self.products.len()) as f64
    }
}

struct Bench {
    team: Team,
    isa: Isa,
    sizes: Sizes,
}

impl Bench {
    /// Each bound that may hold and the product in turn; medians.
    fn case(&mut self, matrices: &Matrices, tokens: usize) -> Result<Figure, Failure> {
        let mut operands = Operands::new(matrices, tokens, self.isa)?;
        let chain = Chain::new(matrices, tokens, &mut operands)?;
        // Wakes the cores' clocks and fills the tables of pages.
        self.products(&chain)?;
        let (mut seconds, mut read, mut multiply) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.sizes.repetitions * TURNS {
            if tokens <= DECODE_TOKENS_MOST {
                let bound = self.read(&chain)?;
                seconds.push(self.products(&chain)?);
                read.push(bound / seconds[seconds.len() - 1]);
            }
            if tokens > READ_TOKENS {
                let bound = self.multiply(&chain)?;
                seconds.push(self.products(&chain)?);
                multiply.push(bound / seconds[seconds.len() - 1]);
            }
        }
        let (bound, fraction) = lower_bound(median(read), median(multiply));
        let seconds = median(seconds);
        let (gb_per_s, gop_per_s) = (chain.bytes() / seconds / 1e9, chain.operations() / seconds / 1e9);
        Ok(Figure { ty: matrices.ty, shape: matrices.shape, tokens, gb_per_s, gop_per_s, bound, fraction })
    }

    /// Seconds of a plain read of all matrices.
    fn read(&mut self, chain: &Chain) -> Result<f64, Failure> {
        let isa = self.isa;
        self.walk(chain, |product, panels| {
            let (matrix, bytes) = (product.weights(), product.weights().bytes());
            let panel_bytes = bytes.len() / matrix.panels();
            black_box(plain_read(isa, &bytes[panels.start * panel_bytes..panels.end * panel_bytes]));
            Ok(())
        })
    }

    /// Seconds of the product with every matrix.
    fn products(&mut self, chain: &Chain) -> Result<f64, Failure> {
        let isa = self.isa;
        // SAFETY: claimed panels are disjoint, and each matrix has its own output, which nobody reads.
        self.walk(chain, |product, panels| unsafe { matmul(isa, product, panels) })
    }

    /// Seconds of `work` on all blocks of all matrices, divided as the executor does.
    fn walk(
        &mut self,
        chain: &Chain,
        work: impl Fn(&Product<'_>, Range<usize>) -> Result<(), KernelError> + Sync,
    ) -> Result<f64, Failure> {
        let failure = Mutex::new(None);
        let seconds = self.timed(|worker| {
            for product in &chain.products {
                let (matrix, step) = (product.weights(), worker.begin_step());
                let grain = Grain::new(matrix, chain.tokens, matrix.panels(), worker.count());
                while let Some(panels) = grain.claim(worker, step, matrix.panels()) {
                    if let Err(error) = work(product, panels) {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            }
        })?;
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(Error::from(error).into()),
            None => Ok(seconds),
        }
    }

    /// Seconds that the chain's operations take in registers.
    fn multiply(&mut self, chain: &Chain) -> Result<f64, Failure> {
        let peak = if chain.matrices.ty.is_plain() { f32_fma_peak } else { int8_dot_peak };
        let (isa, workers) = (self.isa, self.team.active() as f64);
        let per_round = peak(isa, 1).operations as f64 * workers;
        // Some hundredths of a second are enough to know a rate.
        let rounds = (chain.operations().min(5e9 * workers) / per_round).max(1.0) as u32;
        let seconds = self.timed(|_| {
            black_box(peak(isa, rounds));
        })?;
        Ok(seconds * chain.operations() / (f64::from(rounds) * per_round))
    }

    fn timed(&mut self, work: impl Fn(&Worker<'_>) + Sync) -> Result<f64, Failure> {
        let start = Instant::now();
        self.team.run(work).map_err(Error::from)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Operands {
    /// Prepared activations of so many tokens, and room for the results.
    fn new(matrices: &Matrices, tokens: usize, isa: Isa) -> Result<Operands, Failure> {
        let [rows, cols] = matrices.shape;
        let row_bytes = act_row_bytes(matrices.ty, cols).map_err(Error::from)?;
        let mut acts = vec![0; row_bytes * tokens];
        for (token, act) in acts.chunks_exact_mut(row_bytes).enumerate() {
            let x: Vec<f32> = (0..cols).map(|col| ((col * 7 + token * 13) % 31) as f32 - 15.0).collect();
            prepare_act(isa, matrices.ty, &x, act).map_err(Error::from)?;
        }
        Ok(Operands { acts, out: vec![0.0; rows * tokens * matrices.each().count()] })
    }
}

/// The bound that holds a case, and what share of it was reached: the one whose aim is farther. NaN was not measured.
fn lower_bound(read: f64, multiply: f64) -> (Bound, f64) {
    if read.is_nan() || multiply / MULTIPLY_AIM > read / READ_AIM {
        (Bound::Multiply, multiply)
    } else {
        (Bound::Read, read)
    }
}

/// NaN if there is none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints figures.
pub fn print(figures: &[Figure], (threads, isa): (usize, Isa), format: Format) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match format {
        Format::Md => {
            writeln!(out, "| type | rows x columns | tokens | GB/s | GOP/s | bound | share | threads | ISA |")?;
            writeln!(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
        }
        Format::Csv => writeln!(out, "type,rows,cols,tokens,gb_per_s,gop_per_s,bound,share,threads,isa")?,
        Format::Json => {
            let objects = figures.iter().map(|figure| figure.json(threads, isa)).collect();
            writeln!(out, "{}", serde_json::Value::Array(objects))?;
            return Ok(());
        }
    }
    for Figure { ty, shape: [rows, cols], tokens, gb_per_s, gop_per_s, bound, fraction } in figures {
        let (bound, isa) = (bound.name(), isa.name());
        match format {
            Format::Csv => writeln!(
                out,
                "{ty},{rows},{cols},{tokens},{gb_per_s:.3},{gop_per_s:.3},{bound},{fraction:.4},{threads},{isa}"
            )?,
            _ => writeln!(
                out,
                "| {ty} | {rows} x {cols} | {tokens} | {gb_per_s:.2} | {gop_per_s:.1} | {bound} | {fraction:.3} | \
                 {threads} | {isa} |"
            )?,
        }
    }
    Ok(())
}

impl Figure {
    fn json(&self, threads: usize, isa: Isa) -> serde_json::Value {
        serde_json::json!({
            "type": self.ty.name(),
            "rows": self.shape[0],
            "cols": self.shape[1],
            "tokens": self.tokens,
            "gb_per_s": self.gb_per_s,
            "gop_per_s": self.gop_per_s,
            "bound": self.bound.name(),
            "share": self.fraction,
            "threads": threads,
            "isa": isa.name(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Sizes = Sizes { decode: [64, 512], rotation_bytes: 1 << 16, prefill: [32, 256], repetitions: 2 };

    #[test]
    fn every_type_and_instruction_set_is_measured() {
        let types = [WeightType::Q4_K, WeightType::Q8_0, WeightType::F16];
        for isa in Isa::available().skip(1) {
            let mut figures = Vec::new();
            measure(&types, (2, isa), SMALL, &mut |figure| figures.push(*figure)).expect("measured");
            assert_eq!(figures.len(), types.len() * (DECODE_TOKENS.len() + 1));
            for Figure { ty, tokens, gb_per_s, gop_per_s, fraction, .. } in figures {
                assert!([gb_per_s, gop_per_s, fraction].iter().all(|x| *x > 0.0), "{ty}, {tokens} tokens");
            }
        }
    }

    #[test]
    fn the_lower_bound_holds() {
        assert_eq!(lower_bound(0.9, f64::NAN), (Bound::Read, 0.9));
        assert_eq!(lower_bound(0.9, 0.4), (Bound::Read, 0.9));
        assert_eq!(lower_bound(0.81, 0.5), (Bound::Read, 0.81));
        assert_eq!(lower_bound(0.79, 0.5), (Bound::Multiply, 0.5));
        assert_eq!(lower_bound(f64::NAN, 0.7), (Bound::Multiply, 0.7));
    }
}
