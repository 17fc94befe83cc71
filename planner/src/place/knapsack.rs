//! Static placement by dynamic programming: items × MiB × processor of the last item, with switch costs and
//! back-tracking (paper 4.3.3). Exact on the chain for budgets in MiB; O(items · MiB) time and memory. Chains of less
//! than 2 GiB have a finer unit, so that small models are placed as well as large ones.
//!
//! One table answers every smaller budget too. Sizes are rounded up to units, so a budget is never exceeded; what the
//! rounding wastes is won back by reading the table at larger nominal budgets and keeping what truly fits.
//! It knows neither models nor devices; `moe.rs` and `search.rs` do the asking.

use super::chain::{ChainItem, MIB, resident_bytes};

/// No assignment: far above any total, far below overflow.
const IMPOSSIBLE_NS: i64 = i64::MAX / 4;

/// An assignment and its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Whether each item is resident.
    pub resident: Vec<bool>,
    /// Items plus switches.
    pub total_ns: i64,
    /// GPU memory taken.
    pub bytes: u64,
}

/// The solved table.
pub struct Knapsack<'a> {
    items: &'a [ChainItem],
    unit_bytes: u64,
    columns: usize,
    /// Per item and column: bit 0, the item on the CPU follows a GPU item; bit 1, on the GPU it follows a GPU item.
    choices: Vec<u8>,
    /// Least total with the last item on the CPU, by units at most.
    last_cpu_ns: Vec<i64>,
    /// Least total with the last item on the GPU.
    last_gpu_ns: Vec<i64>,
}

const CPU_AFTER_GPU: u8 = 1;
const GPU_AFTER_GPU: u8 = 2;

/// Units that a chain's bytes should make at least, and may make at most.
const LEAST_UNITS: u64 = 2048;
const MOST_UNITS: u64 = 1 << 20;

/// Unit of the memory axis: a MiB, less for small chains, more for those beyond a TiB. It depends on the chain alone,
/// so that tables of different budgets agree.
fn unit_bytes(items: &[ChainItem]) -> u64 {
    let all_bytes = items.iter().map(|item| item.bytes).fold(0, u64::saturating_add);
    let wanted = (all_bytes / LEAST_UNITS).clamp(256, MIB).max(all_bytes / MOST_UNITS);
    1 << wanted.ilog2()
}

impl<'a> Knapsack<'a> {
    /// Solves for all budgets from 0 to `budget_bytes`, and as far beyond as rounding can waste.
    pub fn solve(items: &'a [ChainItem], budget_bytes: u64) -> Knapsack<'a> {
        let unit_bytes = unit_bytes(items);
        let units = |item: &ChainItem| item.bytes.div_ceil(unit_bytes) as usize;
        let most =
            |total: usize, item: &ChainItem| total.saturating_add(if item.allowed.gpu() { units(item) } else { 0 });
        let with_waste = ((budget_bytes / unit_bytes) as usize).saturating_add(items.len());
        let columns = items.iter().fold(0, most).min(with_waste) + 1;
        let mut knapsack = Knapsack {
            items,
            unit_bytes,
            columns,
            choices: vec![0; items.len() * columns],
            last_cpu_ns: vec![0; columns],
            last_gpu_ns: vec![0; columns],
        };
        let mut next = (vec![0; columns], vec![0; columns]);
        for (index, item) in items.iter().enumerate() {
            let choices = &mut knapsack.choices[index * columns..(index + 1) * columns];
            let switches = if index == 0 { (0, 0) } else { (item.to_cpu_ns, item.to_gpu_ns) };
            let previous = (&knapsack.last_cpu_ns[..], &knapsack.last_gpu_ns[..]);
            extend_on_cpu(item, switches.0, previous, &mut next.0, choices);
            extend_on_gpu((item, units(item)), switches.1, previous, &mut next.1, choices);
            std::mem::swap(&mut knapsack.last_cpu_ns, &mut next.0);
            std::mem::swap(&mut knapsack.last_gpu_ns, &mut next.1);
        }
        knapsack
    }

    /// Least total for a budget in MiB; `None` when nothing fits.
    pub fn total_ns(&self, budget_mib: usize) -> Option<i64> {
        self.column_ns(self.column(budget_mib as u64 * MIB))
    }

    /// The column of a budget.
    fn column(&self, budget_bytes: u64) -> usize {
        ((budget_bytes / self.unit_bytes) as usize).min(self.columns - 1)
    }

    fn column_ns(&self, column: usize) -> Option<i64> {
        Some(self.last_cpu_ns[column].min(self.last_gpu_ns[column])).filter(|&total| total < IMPOSSIBLE_NS)
    }

    /// The assignment behind [`Knapsack::total_ns`].
    pub fn assignment(&self, budget_mib: usize) -> Option<Assignment> {
        self.column_assignment(self.column(budget_mib as u64 * MIB))
    }

    /// The assignment of a budget in bytes, rounded down to the table's units.
    pub fn within(&self, budget_bytes: u64) -> Option<Assignment> {
        self.column_assignment(self.column(budget_bytes))
    }

    fn column_assignment(&self, mut column: usize) -> Option<Assignment> {
        let total_ns = self.column_ns(column)?;
        let mut on_gpu = self.last_gpu_ns[column] < self.last_cpu_ns[column];
        let mut resident = vec![false; self.items.len()];
        for index in (0..self.items.len()).rev() {
            resident[index] = on_gpu;
            let choice = self.choices[index * self.columns + column];
            if on_gpu {
                // What is possible fits; a table that were wrong would have no assignment rather than another's.
                column = column.checked_sub(self.items[index].bytes.div_ceil(self.unit_bytes) as usize)?;
            }
            on_gpu = choice & if on_gpu { GPU_AFTER_GPU } else { CPU_AFTER_GPU } != 0;
        }
        let bytes = resident_bytes(self.items, &resident);
        Some(Assignment { resident, total_ns, bytes })
    }

    /// The best assignment of the table whose true bytes are within the budget. Never slower for a larger budget.
    pub fn best_within(&self, budget_bytes: u64) -> Option<Assignment> {
        self.descending(budget_bytes).next()
    }

    /// All assignments of the table whose true bytes are within the budget, the best first: its own, then those that
    /// smaller budgets get.
    pub fn descending(&self, budget_bytes: u64) -> impl Iterator<Item = Assignment> {
        // Totals fall along the axis, so the first that fits from the right is the best. Rounding up wastes less than a
        // unit an item, so none that fits lies further right.
        let last = self.column(budget_bytes).saturating_add(self.items.len()).min(self.columns - 1);
        let is_new = |column: &usize| *column == 0 || self.column_ns(*column) != self.column_ns(column - 1);
        let columns = (0..=last).rev().filter(is_new);
        columns.filter_map(|column| self.column_assignment(column)).filter(move |found| found.bytes <= budget_bytes)
    }
}

/// A total with more added. What is impossible stays so whatever is added, and nothing possible becomes it.
fn plus(total_ns: i64, more_ns: i64) -> i64 {
    if total_ns >= IMPOSSIBLE_NS {
        return IMPOSSIBLE_NS;
    }
    total_ns.saturating_add(more_ns).clamp(-IMPOSSIBLE_NS, IMPOSSIBLE_NS - 1)
}

/// Row of the table with the item on the CPU: it takes no memory.
fn extend_on_cpu(item: &ChainItem, switch_ns: i64, last: (&[i64], &[i64]), next: &mut [i64], choices: &mut [u8]) {
    if !item.allowed.cpu() {
        next.fill(IMPOSSIBLE_NS);
        return;
    }
    for ((next, choice), (&cpu_ns, &gpu_ns)) in next.iter_mut().zip(choices).zip(last.0.iter().zip(last.1)) {
        let after_gpu_ns = plus(gpu_ns, switch_ns);
        *choice |= if after_gpu_ns < cpu_ns { CPU_AFTER_GPU } else { 0 };
        *next = plus(after_gpu_ns.min(cpu_ns), item.cpu_ns);
    }
}

/// Row of the table with the item on the GPU: shifted by its size.
fn extend_on_gpu(
    (item, size): (&ChainItem, usize),
    switch_ns: i64,
    last: (&[i64], &[i64]),
    next: &mut [i64],
    choices: &mut [u8],
) {
    if !item.allowed.gpu() || size >= next.len() {
        next.fill(IMPOSSIBLE_NS);
        return;
    }
    next[..size].fill(IMPOSSIBLE_NS);
    let rows = last.0.iter().zip(last.1);
    for ((next, choice), (&cpu_ns, &gpu_ns)) in next[size..].iter_mut().zip(&mut choices[size..]).zip(rows) {
        let after_cpu_ns = plus(cpu_ns, switch_ns);
        *choice |= if gpu_ns <= after_cpu_ns { GPU_AFTER_GPU } else { 0 };
        *next = plus(after_cpu_ns.min(gpu_ns), item.gpu_ns);
    }
}
