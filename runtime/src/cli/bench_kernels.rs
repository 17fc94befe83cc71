//! `ats-run bench --kernels`: products of each weight type against what this machine can do at all, both measured in
//! turn on the spot. Decode (1 to 4 and 8 tokens) runs through matrices that no cache holds, against a plain read of
//! the same memory by the same threads; prefill (512 tokens) against 8-bit dot products, or multiply-adds for plain
//! numbers, in registers. With 8 tokens the bound is the lower of 80 % of the read and half of the multiplications.
//! Not here: whole models (`bench.rs`), tracking changes (the benches of crate `kernels`, on the same cases).

use super::Failure;
use super::bench::Format;
use crate::{Error, machine};
use device::memory::HostRegion;
use device::team::Team;
use kernels::cases::{DECODE_TOKENS, PREFILL_TOKENS, random_weights};
use kernels::cpu::Isa;
use kernels::cpu::bounds::{f32_fma_peak, int8_dot_peak, plain_read};
use kernels::cpu::matmul::{Layout, Matrix, Output, Product, act_row_bytes, matmul, prepare_act};
use kernels::quant::{WeightType, pack_panels, packed_bytes, panels};
use std::hint::black_box;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Panels that kernels for several tokens work on at once.
const TILE_PANELS: usize = 2;

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

/// Rates of a bound in one run: bytes, and operations.
#[derive(Clone, Copy)]
struct Rates {
    gb_per_s: f64,
    gop_per_s: f64,
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

    fn bytes(&self) -> usize {
        self.each().map(<[u8]>::len).sum()
    }
}

struct Bench {
    team: Team,
    isa: Isa,
    sizes: Sizes,
}

impl Bench {
    /// Bound and product in turn; medians.
    fn case(&mut self, matrices: &Matrices, tokens: usize) -> Result<Figure, Failure> {
        let [rows, cols] = matrices.shape;
        let acts = activations(matrices.ty, cols, tokens, self.isa)?;
        let operations = 2.0 * (rows * cols * tokens * matrices.each().count()) as f64;
        let (bytes, mut runs) = (matrices.bytes() as f64, Vec::new());
        for _ in 0..=self.sizes.repetitions {
            let read = self.read(matrices)?;
            let multiplied = self.multiply(matrices.ty, operations)?;
            let seconds = self.products(matrices, &acts, tokens)?;
            let reached = Rates { gb_per_s: bytes / seconds / 1e9, gop_per_s: operations / seconds / 1e9 };
            let bounds = Rates { gb_per_s: bytes / read / 1e9, gop_per_s: operations / multiplied / 1e9 };
            runs.push((reached, bounds));
        }
        // The first run wakes the cores' clocks and fills the tables of pages.
        let run = runs.split_off(1);
        let (bound, fractions): (Bound, Vec<f64>) = fractions(&run, tokens);
        let of = |rate: fn(&Rates) -> f64| median(run.iter().map(|(reached, _)| rate(reached)).collect());
        Ok(Figure {
            ty: matrices.ty,
            shape: matrices.shape,
            tokens,
            gb_per_s: of(|rates| rates.gb_per_s),
            gop_per_s: of(|rates| rates.gop_per_s),
            bound,
            fraction: median(fractions),
        })
    }

    /// Seconds of a plain read of all matrices.
    fn read(&mut self, matrices: &Matrices) -> Result<f64, Failure> {
        const BLOCK_BYTES: usize = 256 << 10;
        let (isa, blocks) = (self.isa, matrices.region.as_slice().chunks(BLOCK_BYTES));
        let blocks: Vec<&[u8]> = blocks.collect();
        self.timed(|worker| {
            worker.for_blocks(blocks.len() as u32, 1, |range| {
                for block in &blocks[range] {
                    black_box(plain_read(isa, block));
                }
            });
        })
    }

    /// Seconds of so many operations in registers.
    fn multiply(&mut self, ty: WeightType, operations: f64) -> Result<f64, Failure> {
        let peak = if ty.is_plain() { f32_fma_peak } else { int8_dot_peak };
        let (isa, per_round) = (self.isa, peak(self.isa, 1).operations as f64);
        // A tenth of a second is enough to know a rate.
        let done = operations.min(1e10 * self.team.active() as f64);
        let rounds = (done / per_round / self.team.active() as f64).max(1.0) as u32;
        let seconds = self.timed(|_| {
            black_box(peak(isa, rounds));
        })?;
        Ok(seconds * operations / (f64::from(rounds) * per_round * self.team.active() as f64))
    }

    /// Seconds of the product with every matrix.
    fn products(&mut self, matrices: &Matrices, acts: &[u8], tokens: usize) -> Result<f64, Failure> {
        let ([rows, cols], isa) = (matrices.shape, self.isa);
        let mut out = vec![0.0; rows * tokens * matrices.each().count()];
        let product = |(bytes, out)| {
            let matrix = Matrix::new(matrices.ty, Layout::Panel16, rows, cols, bytes)?;
            Product::new(matrix, acts, tokens, Output::new(out, rows))
        };
        let operands = matrices.each().zip(out.chunks_exact_mut(rows * tokens));
        let products = operands.map(product).collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
        let failure = Mutex::new(None);
        let tiles = panels(rows).div_ceil(TILE_PANELS) as u32;
        let grain = (tiles / (8 * self.team.active() as u32)).max(1);
        let seconds = self.timed(|worker| {
            for product in &products {
                worker.for_blocks(tiles, grain, |claimed| {
                    let range = claimed.start * TILE_PANELS..panels(rows).min(claimed.end * TILE_PANELS);
                    // SAFETY: claimed panels are disjoint, and each matrix has its own output, which nobody reads.
                    if let Err(error) = unsafe { matmul(isa, product, range) } {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                });
            }
        })?;
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(Error::from(error).into()),
            None => Ok(seconds),
        }
    }

    fn timed(&mut self, work: impl Fn(&device::team::Worker<'_>) + Sync) -> Result<f64, Failure> {
        let start = Instant::now();
        self.team.run(work).map_err(Error::from)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Prepared activations of so many tokens.
fn activations(ty: WeightType, cols: usize, tokens: usize, isa: Isa) -> Result<Vec<u8>, Failure> {
    let row_bytes = act_row_bytes(ty, cols).map_err(Error::from)?;
    let mut acts = vec![0; row_bytes * tokens];
    for (token, act) in acts.chunks_exact_mut(row_bytes).enumerate() {
        let x: Vec<f32> = (0..cols).map(|col| ((col * 7 + token * 13) % 31) as f32 - 15.0).collect();
        prepare_act(isa, ty, &x, act).map_err(Error::from)?;
    }
    Ok(acts)
}

/// Which bound holds a case, and what share of it each run reached.
fn fractions(runs: &[(Rates, Rates)], tokens: usize) -> (Bound, Vec<f64>) {
    let of_read = |(reached, bound): &(Rates, Rates)| reached.gb_per_s / bound.gb_per_s;
    let of_multiply = |(reached, bound): &(Rates, Rates)| reached.gop_per_s / bound.gop_per_s;
    let (read, multiply): (Vec<f64>, Vec<f64>) = runs.iter().map(|run| (of_read(run), of_multiply(run))).unzip();
    // From 5 tokens on the multiplications may be the lower bound, in a batch they always are.
    let is_multiply = match tokens {
        PREFILL_TOKENS => true,
        0..=4 => false,
        _ => median(multiply.clone()) / MULTIPLY_AIM > median(read.clone()) / READ_AIM,
    };
    if is_multiply { (Bound::Multiply, multiply) } else { (Bound::Read, read) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
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
        let run = |read: f64, multiply: f64| {
            let rates = |gb_per_s, gop_per_s| Rates { gb_per_s, gop_per_s };
            [(rates(read, multiply), rates(1.0, 1.0))]
        };
        assert_eq!(fractions(&run(0.9, 0.4), 1).0, Bound::Read);
        assert_eq!(fractions(&run(0.9, 0.4), 8).0, Bound::Read);
        assert_eq!(fractions(&run(0.81, 0.5), 8).0, Bound::Read);
        assert_eq!(fractions(&run(0.79, 0.5), 8).0, Bound::Multiply);
        assert_eq!(fractions(&run(0.1, 0.7), PREFILL_TOKENS).0, Bound::Multiply);
    }
}
