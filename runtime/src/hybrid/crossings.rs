//! Which columns of which values one processor makes and the other reads. The unit is what one operator writes of one
//! value: it crosses whole, and once. Pure. Next: `script.rs`.

use plan_format::ValueId;
use plan_format::operands::Columns;
use plan_format::program::Program;
use std::ops::Range;

/// Where a crossing arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// In the GPU's arena.
    Gpu,
    /// In the host's.
    Host,
}

/// Columns that cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The item that makes them.
    pub item: usize,
    /// The columns.
    pub columns: Columns,
}

/// What items read and write, by item; made once per program.
#[derive(Debug)]
pub struct ItemAccess {
    /// Columns read.
    pub reads: Vec<Vec<Columns>>,
    /// Columns written, one entry per operator and value.
    pub writes: Vec<Vec<Columns>>,
    logits: ValueId,
}

impl ItemAccess {
    /// Of a program's items.
    pub fn new(program: &Program) -> ItemAccess {
        let of = |item: usize| program.ops[ops(program, item)].iter();
        let items = 0..program.items.len();
        ItemAccess {
            reads: items.clone().map(|item| of(item).flat_map(|op| op.kind.reads()).collect()).collect(),
            writes: items.map(|item| of(item).flat_map(|op| op.kind.writes()).collect()).collect(),
            logits: program.logits,
        }
    }
}

/// All columns written, and which of them have crossed.
#[derive(Debug)]
pub struct Crossings<'a> {
    access: &'a ItemAccess,
    /// By value.
    written: Vec<Vec<Written>>,
    /// Columns that are read on the host, by value.
    host_reads: Vec<Vec<Columns>>,
}

#[derive(Debug)]
struct Written {
    crossing: Crossing,
    is_on_gpu: bool,
    has_arrived: bool,
}

impl<'a> Crossings<'a> {
    /// What items write where. The host reads `also`, besides what its items read.
    pub fn new(
        access: &'a ItemAccess,
        values: usize,
        on_gpu: &[bool],
        also: impl Iterator<Item = Columns>,
    ) -> Crossings<'a> {
        let mut written: Vec<Vec<Written>> = (0..values).map(|_| Vec::new()).collect();
        let mut host_reads: Vec<Vec<Columns>> = vec![Vec::new(); values];
        for (item, &is_on_gpu) in on_gpu.iter().enumerate() {
            for &columns in &access.writes[item] {
                let crossing = Crossing { item, columns };
                written[columns.value.index()].push(Written { crossing, is_on_gpu, has_arrived: false });
            }
            for columns in access.reads[item].iter().filter(|_| !is_on_gpu) {
                host_reads[columns.value.index()].push(*columns);
            }
        }
        also.for_each(|columns| host_reads[columns.value.index()].push(columns));
        Crossings { access, written, host_reads }
    }

    /// What an item on `side` reads that the other side made. To the GPU each is reported once, at its first reader.
    pub fn arriving(&mut self, item: usize, side: Side) -> Vec<Crossing> {
        let mut list = Vec::new();
        for columns in &self.access.reads[item] {
            for written in &mut self.written[columns.value.index()] {
                let elsewhere = written.is_on_gpu != (side == Side::Gpu);
                let is_new = side == Side::Host || !written.has_arrived;
                let is_read = meet(&written.crossing.columns, columns) && !list.contains(&written.crossing);
                if elsewhere && is_new && is_read {
                    written.has_arrived = true;
                    list.push(written.crossing);
                }
            }
        }
        list
    }

    /// What an item on the GPU makes that the CPU reads; the logits are read by whoever asked for the round.
    pub fn leaving(&self, item: usize) -> Vec<Crossing> {
        let is_read = |columns: &&Columns| {
            let mut reads = self.host_reads[columns.value.index()].iter();
            columns.value == self.access.logits || reads.any(|read| meet(columns, read))
        };
        let made = self.access.writes[item].iter().filter(is_read);
        made.map(|&columns| Crossing { item, columns }).collect()
    }
}

/// The operators of an item.
pub fn ops(program: &Program, item: usize) -> Range<usize> {
    let item = &program.items[item];
    item.first_op as usize..(item.first_op + item.op_count) as usize
}

/// Whether two sets of columns may have one in common.
fn meet(a: &Columns, b: &Columns) -> bool {
    let end = |c: &Columns| c.first_col + c.stride * c.groups.saturating_sub(1) + c.width;
    a.value == b.value && a.first_col < end(b) && b.first_col < end(a)
}
