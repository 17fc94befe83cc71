//! Inputs of products: which forms of a value the products read, where the forms lie, and what their producers write.
//!
//! A group is one view of a value with all products that read it. Its forms live from the operator that writes them (a
//! norm, gated unit or attention can write them itself; else the first product of the run converts the value) to the
//! last product; groups whose lives do not meet share memory. Next: `lower.rs`.

use super::at;
use crate::Error;
use crate::hybrid::ops::{RoundArgs, Sizes};
use device::gpu::DevicePtr as Address;
use kernels::cuda::product::{self, Activations, Form};
use kernels::cuda::{DevicePtr, Forms, View, experts};
use kernels::quant::WeightType;
use plan_format::WeightId;
use plan_format::program::{self, ExpertInput, OpKind, Program, Rows};

/// Tokens up to which routed experts are computed one by one: more are sorted by expert.
pub const SLOT_TOKENS_MAX: u32 = 8;
const ALIGNMENT_BYTES: u64 = 256;

/// A product that reads a group: what decides its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Index of the operator.
    pub op: usize,
    /// Type of the weights.
    pub ty: WeightType,
    /// Whether each row multiplies a matrix of its own.
    pub is_stack: bool,
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct Group {
    /// What is read.
    pub view: program::View,
    /// Rows of the view.
    pub rows: Rows,
    /// Inputs side by side in a row, each of `view.cols / parts` columns.
    pub parts: u32,
    /// Products in order.
    pub wants: Vec<Want>,
    /// First operator that may write the forms.
    first: usize,
    places: Places,
}

/// Offsets of the forms in the scratch, and how large they are.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    f16: u64,
    row_scale: u64,
    bf16: u64,
    q8: u64,
    q8_scales: u64,
    bytes: u64,
}

/// What a product reads: its view, inputs side by side, weights, and whether they are stacks.
fn input(kind: &OpKind) -> Option<(program::View, u32, Vec<WeightId>, bool)> {
    let weights = |parts: &[program::MatMulPart]| parts.iter().map(|part| part.weight).collect();
    match kind {
        OpKind::MatMul { x, parts } => Some((*x, 1, weights(parts), false)),
        OpKind::ExpertMatMul { x, input: ExpertInput::Shared, parts, .. } => Some((*x, 1, weights(parts), true)),
        OpKind::ExpertMatMul { x, chosen, parts, .. } => Some((*x, *chosen, weights(parts), true)),
        OpKind::HeadMatMul { x, heads, weight, .. } => Some((*x, *heads, vec![*weight], true)),
        _ => None,
    }
}

/// Type of a weight.
pub fn weight_type(program: &Program, weight: WeightId) -> Result<WeightType, Error> {
    let tensor = &program.tensors[program.weights[weight.index()].tensor.index()];
    let unknown = || Error::TensorType { tensor: tensor.name.clone(), ggml_type: tensor.ggml_type };
    WeightType::try_from(gguf::GgmlType::from_id(tensor.ggml_type)).map_err(|_| unknown())
}

/// All groups of a program, without places.
///
/// # Errors
/// A weight of a type without kernels.
pub fn groups(program: &Program, sizes: &Sizes) -> Result<Vec<Group>, Error> {
    let mut groups: Vec<Group> = Vec::new();
    for (op, kind) in program.ops.iter().map(|op| &op.kind).enumerate() {
        let Some((view, parts, weights, is_stack)) = input(kind) else { continue };
        let known = groups.iter().rposition(|group| group.view == view && group.parts == parts);
        let index = known.unwrap_or_else(|| {
            let rows = program.values[view.value.index()].rows;
            let first = producer(program, view, op).unwrap_or(op);
            groups.push(Group { view, rows, parts, wants: Vec::new(), first, places: Places::default() });
            groups.len() - 1
        });
        for weight in weights {
            let want = Want { op, ty: weight_type(program, weight)?, is_stack };
            if !groups[index].wants.contains(&want) {
                groups[index].wants.push(want);
            }
        }
    }
    groups.iter_mut().for_each(|group| group.places = group.sized(sizes));
    Ok(groups)
}

/// The operator before `end` whose output is this view and that can write forms.
fn producer(program: &Program, view: program::View, end: usize) -> Option<usize> {
    (0..end).rev().find(|&op| match &program.ops[op].kind {
        OpKind::RmsNorm { x, group, out, .. } => *out == view && *group == x.cols,
        OpKind::Glu { out, .. } | OpKind::Attention { out, .. } => *out == view,
        _ => false,
    })
}

/// Gives each group its place from `start` on and returns where all end. First fit in order of lives.
pub fn place(groups: &mut [Group], start: u64) -> u64 {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&index| groups[index].first);
    let mut alive: Vec<(u64, u64, usize)> = Vec::new(); // begin, end, last operator
    let mut total = start;
    for index in order {
        let (first, last, bytes) = (groups[index].first, groups[index].last(), groups[index].places.bytes);
        alive.retain(|&(_, _, until)| until >= first);
        alive.sort_unstable();
        let mut begin = start;
        for &(from, to, _) in &alive {
            if begin + bytes <= from {
                break;
            }
            begin = begin.max(to);
        }
        alive.push((begin, begin + bytes, last));
        groups[index].places = groups[index].places.moved(begin);
        total = total.max(begin + bytes);
    }
    total
}

impl Places {
    fn moved(self, by: u64) -> Places {
        Places {
            f16: self.f16 + by,
            row_scale: self.row_scale + by,
            bf16: self.bf16 + by,
            q8: self.q8 + by,
            q8_scales: self.q8_scales + by,
            bytes: self.bytes,
        }
    }
}

impl Group {
    /// The norm, gated unit or attention that makes the value.
    pub fn producer(&self, program: &Program) -> Option<usize> {
        producer(program, self.view, self.wants.first()?.op)
    }

    fn last(&self) -> usize {
        self.wants.last().map_or(self.first, |want| want.op)
    }

    /// Columns of one input.
    pub fn cols(&self) -> u32 {
        self.view.cols / self.parts.max(1)
    }

    /// Places from offset 0 on: as large as the largest round needs.
    fn sized(&self, sizes: &Sizes) -> Places {
        let limits = sizes.limits;
        let most = match self.rows {
            Rows::Tokens => limits.ubatch_tokens,
            Rows::Outputs => limits.output_tokens,
        };
        let (cols, rows) = (u64::from(self.cols()), u64::from(most) * u64::from(self.parts));
        let (mut halves, mut brains, mut bytes_rows) = (0, 0, 0);
        for want in &self.wants {
            let few = if want.is_stack { SLOT_TOKENS_MAX } else { product::GEMV_TOKENS_MAX }.min(most);
            for tokens in (1..=few).chain([most]) {
                match want.form(self.cols(), tokens) {
                    Form::F32 => {}
                    Form::F16 => halves = rows,
                    Form::Bf16 => brains = rows,
                    // The kernel for four tokens takes three too, and reads the fourth row.
                    Form::Q8 => {
                        bytes_rows = bytes_rows.max(u64::from(tokens).next_multiple_of(4) * u64::from(self.parts));
                    }
                }
            }
        }
        let mut end = 0u64;
        let mut take = |bytes: u64| {
            let begin = end;
            end = (end + bytes).next_multiple_of(ALIGNMENT_BYTES);
            begin
        };
        let (f16, row_scale, bf16) = (take(halves * cols * 2), take(halves * 4), take(brains * cols * 2));
        let (q8, q8_scales) = (take(bytes_rows * cols), take(bytes_rows * cols / 4));
        Places { f16, row_scale, bf16, q8, q8_scales, bytes: end }
    }
}

impl Want {
    /// The form that this product reads in rounds of so many tokens, for inputs of so many columns.
    pub fn form(&self, cols: u32, tokens: u32) -> Form {
        if !self.is_stack {
            return product::form(self.ty, cols, tokens);
        }
        if is_sorted(self.ty, cols, tokens) {
            return product::form(self.ty, cols, u32::MAX);
        }
        if self.ty.is_plain() { Form::F32 } else { Form::Q8 }
    }
}

/// Whether a stack's product of so many tokens goes sorted by matrix.
pub fn is_sorted(ty: WeightType, cols: u32, tokens: u32) -> bool {
    tokens > SLOT_TOKENS_MAX && experts::has_grouped_type(ty, cols)
}

/// A group in one run, with addresses.
#[derive(Clone, Debug)]
pub struct Acts {
    /// The value itself.
    pub x: View,
    rows: Rows,
    parts: u32,
    wants: Vec<Want>,
    forms: Forms,
}

impl Acts {
    /// The products `wants` of a group that lies in `scratch`.
    pub fn new(group: &Group, wants: Vec<Want>, x: View, scratch: Address) -> Acts {
        let address = |offset| at(scratch.offset(offset));
        let Places { f16, row_scale, bf16, q8, q8_scales, .. } = group.places;
        let forms = Forms {
            f16: address(f16),
            row_scale: address(row_scale),
            bf16: address(bf16),
            q8: address(q8),
            q8_scales: address(q8_scales),
            ..Forms::default()
        };
        Acts { x, rows: group.rows, parts: group.parts, wants, forms }
    }

    /// Inputs side by side in a row.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Columns of one input.
    fn cols(&self) -> u32 {
        self.x.cols / self.parts.max(1)
    }

    /// Rows of the forms in a round.
    pub fn rows(&self, args: RoundArgs) -> u32 {
        args.rows(self.rows) * self.parts
    }

    /// Whether a product of this round reads the value itself.
    pub fn reads_value(&self, args: RoundArgs) -> bool {
        self.wants.iter().any(|want| want.form(self.cols(), args.rows(self.rows)) == Form::F32)
    }

    /// The forms that this round's products read; null pointers for others.
    pub fn forms(&self, args: RoundArgs) -> Forms {
        let mut forms = Forms::default();
        for want in &self.wants {
            match want.form(self.cols(), args.rows(self.rows)) {
                Form::F32 => {}
                Form::Q8 => (forms.q8, forms.q8_scales) = (self.forms.q8, self.forms.q8_scales),
                Form::F16 => (forms.f16, forms.row_scale) = (self.forms.f16, self.forms.row_scale),
                Form::Bf16 => forms.bf16 = self.forms.bf16,
            }
        }
        forms
    }

    /// The value as rows of single inputs; `None` if they do not lie so.
    pub fn input_rows(&self) -> Option<View> {
        split_rows(self.x, self.parts)
    }

    /// The activations in a form; `stride` is that of a token.
    pub fn activations(&self, form: Form) -> Activations {
        let dense = |data, scales| Activations { form, data, scales, stride: self.x.cols };
        match form {
            Form::F32 => Activations { form, data: self.x.data, scales: DevicePtr::NULL, stride: self.x.stride },
            Form::Q8 => dense(self.forms.q8, self.forms.q8_scales),
            Form::F16 => dense(self.forms.f16, self.forms.row_scale),
            Form::Bf16 => dense(self.forms.bf16, DevicePtr::NULL),
        }
    }
}

/// A view whose rows hold `parts` inputs each, as rows of one input; `None` where rows do not touch.
pub fn split_rows(view: View, parts: u32) -> Option<View> {
    let cols = view.cols / parts.max(1);
    match parts {
        0 | 1 => Some(view),
        _ if view.stride == view.cols => Some(View { cols, stride: cols, ..view }),
        _ => None,
    }
}
