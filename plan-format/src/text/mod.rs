//! Programs and plans as text, made for reading and for snapshots. Nothing parses it: the artifact is the format.
//! `op.rs` writes one operator, `plan.rs` what `ats-plan inspect` prints.

mod op;
mod plan;

pub use op::Tables;
pub use plan::{Detail, bytes_text, plan_text};

use crate::program::{Part, PartAxis, Program, StateKind, Weight};

/// Every item with its weights and states, and every operator.
pub fn program_text(program: &Program) -> String {
    let tables = Tables::of(program);
    let mut text = format!(
        "program {} vocab={} context={} items={} ops={}\n",
        program.architecture,
        program.vocab,
        program.context_tokens,
        program.items.len(),
        program.ops.len()
    );
    for (index, rope) in program.ropes.iter().enumerate() {
        line(&mut text, format_args!("rope {index}: {}", tables.rope(rope)));
    }
    for item in &program.items {
        let layer = item.layer.map_or(String::new(), |layer| format!(" layer={layer}"));
        line(&mut text, format_args!("{} {:?}{layer}", item.name, item.kind));
        for weight in &item.weights {
            line(&mut text, format_args!("  weight {}", weight_text(program, &program.weights[weight.index()])));
        }
        for state in &item.states {
            let state = &program.states[state.index()];
            line(&mut text, format_args!("  state {} {}", state.name, state_text(&state.kind)));
        }
        for op in program.ops_of(item) {
            line(&mut text, format_args!("  {}", tables.op(&op.kind)));
        }
    }
    text
}

/// Adds a line. Names of models and machines may hold any characters: none may act on a terminal.
fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    for c in arguments.to_string().chars() {
        match c {
            '\n' => text.push(c),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text.push('\n');
}

fn weight_text(program: &Program, weight: &Weight) -> String {
    let tensor = &program.tensors[weight.tensor.index()];
    let dims: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
    let used = tensor.dims.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
    let ty = gguf::GgmlType::from_id(tensor.ggml_type);
    let parts = match weight.parts.as_slice() {
        [_] if weight.axis != PartAxis::Experts => String::new(),
        parts => format!(" {}={}", axis_name(weight.axis), parts_text(parts)),
    };
    format!("{} {ty} {{{}}} {:?}{parts}", tensor.name, dims[..used].join(","), weight.role)
}

fn axis_name(axis: PartAxis) -> &'static str {
    match axis {
        PartAxis::Rows => "rows",
        PartAxis::Cols => "cols",
        PartAxis::Experts => "experts",
    }
}

pub(crate) fn parts_text(parts: &[Part]) -> String {
    parts.iter().map(|part| format!("{}..{}", part.begin, part.end)).collect::<Vec<_>>().join("+")
}

fn state_text(kind: &StateKind) -> String {
    match kind {
        StateKind::Kv { k_cols, v_cols, window_tokens } => {
            let window = window_tokens.map_or(String::new(), |tokens| format!(" window={tokens}"));
            format!("kv k={k_cols} v={v_cols}{window}")
        }
        StateKind::Conv { channels, taps } => format!("conv channels={channels} taps={taps}"),
        StateKind::Recurrent { value_heads, head_cols } => format!("recurrent heads={value_heads} cols={head_cols}"),
    }
}
