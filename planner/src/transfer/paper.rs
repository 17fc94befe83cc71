//! Dynamic transfer scheduling as the paper has it (4.4, Algorithm 2), with one correction.
//!
//! The objective is T(rb) = Σ times + Σ switches + Σ exposed transfer times of the promoted items. A transfer overlaps
//! the default path after an *anchor* j: the first CPU-executed item after the last promotion, or the start of the
//! round when nothing was promoted yet; so between two promotions lies a CPU-executed item.
//! As printed, Algorithm 2 adds the switch into a promoted item when b[i−1] = GPU; T pays it when b[i−1] = CPU, and
//! only so does the dynamic program minimise T (a test shows both).
//! Slots, the router, DRAM contention and the next round are not in this model: `pipelined.rs` lifts its limits, and
//! the simulator judges the results of both.

/// One item in execution order, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferItem {
    /// On the CPU.
    pub cpu_ns: i64,
    /// On the GPU.
    pub gpu_ns: i64,
    /// Cost of entering it on the GPU from a CPU predecessor.
    pub to_gpu_ns: i64,
    /// Cost of entering it on the CPU from a GPU predecessor.
    pub to_cpu_ns: i64,
    /// Transfer of its weights; `None` = it cannot be promoted.
    pub stream_ns: Option<i64>,
    /// Default placement.
    pub home: Side,
}

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// CPU.
    Cpu,
    /// GPU.
    Gpu,
}

impl TransferItem {
    fn promotable_ns(&self) -> Option<i64> {
        self.stream_ns.filter(|_| self.home == Side::Cpu)
    }

    /// Cost of entering this item on `to` when its predecessor ran on `from`.
    fn switch_ns(&self, from: Side, to: Side) -> i64 {
        match (from, to) {
            (Side::Cpu, Side::Gpu) => self.to_gpu_ns,
            (Side::Gpu, Side::Cpu) => self.to_cpu_ns,
            _ => 0,
        }
    }

    fn time_ns(&self, side: Side) -> i64 {
        match side {
            Side::Cpu => self.cpu_ns,
            Side::Gpu => self.gpu_ns,
        }
    }
}

/// Which items are promoted, and the round's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// T of the assignment.
    pub total_ns: i64,
    /// Whether each item is promoted.
    pub promoted: Vec<bool>,
}

const IMPOSSIBLE_NS: i64 = i64::MAX / 4;

/// Which indicator the recurrence uses for the switch into a promoted item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indicator {
    /// b[i−1] = CPU: minimises T.
    Corrected,
    /// b[i−1] = GPU: as the paper prints it. For the test that shows the difference.
    AsPrinted,
}

/// How a state of the recurrence was reached.
#[derive(Clone, Copy)]
enum From {
    /// From the item before, on this side.
    Previous(Side),
    /// Promoted, with its transfer anchored at this item (0 = the start, otherwise item index + 1).
    Anchor(usize),
}

/// Algorithm 2 in O(n²): the best set of promotions under T.
pub fn schedule(items: &[TransferItem], indicator: Indicator) -> Promoted {
    let path_ns = default_path_ns(items);
    // Index 0 is the virtual start on the CPU.
    let mut on_cpu = vec![IMPOSSIBLE_NS; items.len() + 1];
    let mut on_gpu = vec![IMPOSSIBLE_NS; items.len() + 1];
    let mut from = vec![(From::Previous(Side::Cpu), From::Previous(Side::Cpu)); items.len() + 1];
    on_cpu[0] = 0;
    for i in 1..=items.len() {
        let item = &items[i - 1];
        let step = |to: Side| {
            let switch = |from: Side| if i == 1 { 0 } else { item.switch_ns(from, to) };
            let (cpu, gpu) = (on_cpu[i - 1] + switch(Side::Cpu), on_gpu[i - 1] + switch(Side::Gpu));
            let side = if cpu <= gpu { Side::Cpu } else { Side::Gpu };
            ((cpu.min(gpu) + item.time_ns(to)).min(IMPOSSIBLE_NS), From::Previous(side))
        };
        if item.home == Side::Gpu {
            (on_gpu[i], from[i].1) = step(Side::Gpu);
            continue;
        }
        (on_cpu[i], from[i].0) = step(Side::Cpu);
        if let Some(stream_ns) = item.promotable_ns() {
            let reach = |j: usize| on_cpu[j] + stream_ns.max(path_ns[i - 1] - path_ns[j]);
            let anchors = (0..i).filter(|&j| j == 0 || items[j - 1].home == Side::Cpu);
            if let Some(j) = anchors.min_by_key(|&j| (reach(j), j)) {
                let entering = if i == 1 { 0 } else { entry_ns(item, items[i - 2].home, indicator) };
                on_gpu[i] = (reach(j) + entering + item.gpu_ns).min(IMPOSSIBLE_NS);
                from[i].1 = From::Anchor(j);
            }
        }
    }
    recover(items, &on_cpu, &on_gpu, &from)
}

fn entry_ns(item: &TransferItem, before: Side, indicator: Indicator) -> i64 {
    let pays = match indicator {
        Indicator::Corrected => before == Side::Cpu,
        Indicator::AsPrinted => before == Side::Gpu,
    };
    if pays { item.to_gpu_ns } else { 0 }
}

/// Prefix sums of the default path: `path[i]` is its time through item `i − 1`, switches included.
fn default_path_ns(items: &[TransferItem]) -> Vec<i64> {
    let mut path_ns = vec![0];
    for (i, item) in items.iter().enumerate() {
        let switch = if i == 0 { 0 } else { item.switch_ns(items[i - 1].home, item.home) };
        path_ns.push(path_ns[i] + switch + item.time_ns(item.home));
    }
    path_ns
}

/// Walks back from the better final state.
fn recover(items: &[TransferItem], on_cpu: &[i64], on_gpu: &[i64], from: &[(From, From)]) -> Promoted {
    let mut promoted = vec![false; items.len()];
    let mut i = items.len();
    let total_ns = on_cpu[i].min(on_gpu[i]);
    let mut side = if on_cpu[i] <= on_gpu[i] { Side::Cpu } else { Side::Gpu };
    while i > 0 {
        let reached = if side == Side::Cpu { from[i].0 } else { from[i].1 };
        match reached {
            From::Previous(before) => {
                i -= 1;
                side = before;
            }
            From::Anchor(anchor) => {
                promoted[i - 1] = true;
                i = anchor;
                side = Side::Cpu;
            }
        }
    }
    Promoted { total_ns, promoted }
}

/// T of an assignment, computed from its definition. `None` when two promotions have no CPU-executed item between.
pub fn total_ns(items: &[TransferItem], promoted: &[bool]) -> Option<i64> {
    let side = |i: usize| if promoted[i] { Side::Gpu } else { items[i].home };
    let mut total_ns = 0;
    // The anchor: `Some(first item of the window)`; `None` until a CPU-executed item follows the last promotion.
    let mut window = Some(0);
    for (i, item) in items.iter().enumerate() {
        total_ns += item.time_ns(side(i));
        if i > 0 {
            total_ns += item.switch_ns(side(i - 1), side(i));
        }
        if promoted[i] {
            let hidden_ns = default_window_ns(items, window?, i);
            total_ns += (item.promotable_ns()? - hidden_ns).max(0);
            window = None;
        } else if window.is_none() && side(i) == Side::Cpu {
            window = Some(i + 1);
        }
    }
    Some(total_ns)
}

/// Time of the default path over `first..end`, each item's entering switch included.
fn default_window_ns(items: &[TransferItem], first: usize, end: usize) -> i64 {
    let mut sum_ns = 0;
    for i in first..end {
        sum_ns += items[i].time_ns(items[i].home);
        if i > 0 {
            sum_ns += items[i].switch_ns(items[i - 1].home, items[i].home);
        }
    }
    sum_ns
}

/// The least T over all assignments that the rules allow; the oracle. Time 2ⁿ.
pub fn brute_force(items: &[TransferItem]) -> i64 {
    let assignment = |bits: u64| (0..items.len()).map(|i| bits >> i & 1 == 1).collect::<Vec<bool>>();
    let legal = |promoted: &Vec<bool>| (0..items.len()).all(|i| !promoted[i] || items[i].promotable_ns().is_some());
    let totals = (0..1u64 << items.len()).map(assignment).filter(legal).filter_map(|p| total_ns(items, &p));
    totals.min().unwrap_or(0)
}
