//! Scripts of all reference models under random sets of resident and streamed items, played by a machine that knows
//! nothing but the rules: nobody waits for ever, slots are used in turn, and what crosses has crossed when it is read.

use super::ahead::FILLS_AHEAD;
use super::*;
use crate::hybrid::bound::ids;
use plan_format::ItemId;
use plan_format::arena::RoundLimits;
use plan_format::program::ItemKind;
use plan_format::schedule::Slot;

/// A small generator of choices.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % end
    }
}

fn program(name: &str) -> Program {
    let model = gguf::Model::open(&fixtures::reference_dir().join(format!("tiny-{name}.gguf"))).expect("a model");
    planner::lower_model(&model).expect("a known family")
}

/// Random sides, promotions and routed transfers.
struct Setting {
    on_gpu: Vec<bool>,
    promotions: Vec<Promotion>,
    slots: Slots,
    routed: Vec<Option<Columns>>,
}

fn setting(program: &Program, seed: u64) -> Setting {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let count = 1 + random.below(3);
    let slot = |index| Slot { offset_bytes: index * 256, size_bytes: 256 };
    let slots = Slots { slots: (0..count).map(slot).collect() };
    let (mut on_gpu, mut promotions, mut routed) = (Vec::new(), Vec::new(), Vec::new());
    for (index, item) in program.items.iter().enumerate() {
        let fixed = matches!(item.kind, ItemKind::Embedding | ItemKind::Attention | ItemKind::Recurrent);
        let draw = random.below(3);
        on_gpu.push(draw == 0 || draw == 1 && !fixed);
        if draw == 1 && !fixed {
            let slot = SlotId(random.below(count) as u32);
            promotions.push(Promotion { item: ItemId(index as u32), slot, after: None });
            let by_choice = ids(program, index).filter(|_| random.below(2) == 0);
            routed.push(by_choice.map(Columns::from));
        }
    }
    Setting { on_gpu, promotions, slots, routed }
}

fn script(program: &Program, setting: &Setting) -> Script {
    let arena = Arena::new(program, RoundLimits { ubatch_tokens: 4, output_tokens: 1 });
    let access = ItemAccess::new(program);
    Script::new(Scene {
        program,
        access: &access,
        arena: &arena,
        on_gpu: &setting.on_gpu,
        promotions: &setting.promotions,
        slots: &setting.slots,
        routed: &setting.routed,
    })
}

/// Plays a round: worker 0 queues up to each horizon, with transfers as late as they may be or as early, the GPU runs
/// as far as it may.
struct Player<'a> {
    script: &'a Script,
    setting: &'a Setting,
    is_eager: bool,
    holds: Vec<Option<usize>>,
    queued: usize,
    fills_queued: usize,
    executed: usize,
    parts_done: usize,
    signals: Vec<usize>,
}

impl Player<'_> {
    fn queue(&mut self, until: usize, fill_limit: usize, context: &str) {
        while self.queued < until {
            self.fill_due(fill_limit, self.queued, context);
            match &self.script.commands[self.queued] {
                Command::Run(_, Some(promotion)) => {
                    let slot = self.holds[self.setting.promotions[*promotion].slot.index()];
                    assert_eq!(slot, Some(*promotion), "{context}: a slot holds another item");
                }
                Command::Release(slot) => self.holds[slot.index()] = None,
                _ => {}
            }
            self.queued += 1;
        }
        self.run();
        let is_over = self.queued == self.script.commands.len() && fill_limit == self.script.fills.len();
        self.fill_due(fill_limit, if is_over { self.queued } else { 0 }, context);
    }

    /// Whether the host may know what a transfer brings.
    fn knows(&self, fill: &Fill) -> bool {
        match self.script.known[fill.promotion] {
            Some(Known::Part(part)) => part < self.parts_done,
            Some(Known::Signal(number)) => self.signals.contains(&number),
            None => true,
        }
    }

    /// Transfers whose reader is not behind command `due`, and all that may be.
    fn fill_due(&mut self, limit: usize, due: usize, context: &str) {
        while let Some(fill) = self.script.fills.get(self.fills_queued) {
            let must = fill.before <= due && due > 0;
            let may = self.is_eager && self.fills_queued < limit && fill.after <= self.queued && self.knows(fill);
            if !may && !must {
                return;
            }
            self.run();
            assert!(fill.after <= self.queued, "{context}: a fill before its slot was released");
            assert!(self.knows(fill), "{context}: a fill whose experts are never known");
            let slot = &mut self.holds[self.setting.promotions[fill.promotion].slot.index()];
            assert_eq!(slot.replace(fill.promotion), None, "{context}: a slot filled before it was released");
            self.fills_queued += 1;
        }
    }

    fn run(&mut self) {
        while self.executed < self.queued {
            match &self.script.commands[self.executed] {
                Command::WaitCpu(part) if *part >= self.parts_done => return,
                Command::Signal(number) => self.signals.push(*number),
                _ => {}
            }
            self.executed += 1;
        }
    }
}

/// Nobody waits for ever, and slots are filled, read and released in turn, over as many rounds as one likes.
fn rounds_go_on(script: &Script, setting: &Setting, is_eager: bool, context: &str) {
    let mut holds: Vec<Option<usize>> = vec![None; setting.slots.slots.len()];
    for &promotion in &script.ahead {
        let slot = &mut holds[setting.promotions[promotion].slot.index()];
        assert_eq!(slot.replace(promotion), None, "{context}: two transfers for one slot at the start");
    }
    let start = holds.clone();
    let (queued, fills_queued, executed, parts_done, signals) = (0, 0, 0, 0, Vec::new());
    let mut player = Player { script, setting, is_eager, holds, queued, fills_queued, executed, parts_done, signals };
    for (index, part) in script.parts.iter().enumerate() {
        let limit = script.fill_limits[index];
        player.queue(script.needed[index], limit, context);
        if let Some(needed) = part.needs {
            assert!(player.signals.contains(&needed), "{context}: part {index} waits for signal {needed} for ever");
        }
        player.queue(script.horizons[index], limit, context);
        player.parts_done = index + 1;
        player.run();
    }
    player.queue(script.commands.len(), script.fills.len(), context);
    assert_eq!(player.executed, script.commands.len(), "{context}: the GPU waits for ever");
    assert_eq!(player.fills_queued, script.fills.len(), "{context}: a transfer is left");
    assert_eq!(player.holds, start, "{context}: the next round begins with other slots");
    assert!(script.commands.is_empty() || matches!(script.commands.last(), Some(Command::Signal(_))));
}

/// While a part runs, few transfers stand behind the wait for it: a driver has no room for many.
fn few_transfers_wait_for_a_part(script: &Script, context: &str) {
    for (index, &limit) in script.fill_limits.iter().enumerate() {
        let waits = |command: &Command| matches!(command, Command::WaitCpu(waited) if *waited >= index);
        let wait = script.commands.iter().position(waits).unwrap_or(script.commands.len());
        let behind = script.fills[..limit].iter().filter(|fill| fill.after > wait).count();
        assert!(behind <= FILLS_AHEAD, "{context}: {behind} transfers behind part {index}");
        let forced = script.fills.iter().filter(|fill| fill.before < script.horizons[index]).count();
        assert!(
            forced <= limit || script.horizons[index] == script.needed[index],
            "{context}: part {index} goes on to readers of transfers that may not be queued"
        );
    }
}

/// Every item runs once, and where it reads, what the other side made has been moved and waited for.
fn what_is_read_has_come(program: &Program, script: &Script, setting: &Setting, context: &str) {
    let access = ItemAccess::new(program);
    let mut made_at = vec![None; program.items.len()];
    let (mut waited, mut arrived) = (None, Vec::new());
    for (position, command) in script.commands.iter().enumerate() {
        match command {
            Command::WaitCpu(part) => waited = waited.max(Some(*part)),
            Command::Move(Side::Gpu, crossings) => {
                for crossing in crossings {
                    let part = script.parts.iter().position(|part| part.items.contains(&crossing.item));
                    assert!(part <= waited, "{context}: a move before its part");
                    arrived.push(*crossing);
                }
            }
            Command::Run(items, _) => {
                for item in items.clone() {
                    assert!(setting.on_gpu[item] && made_at[item].replace(position).is_none(), "{context}");
                    for read in &access.reads[item] {
                        let missing = (0..item).filter(|&producer| !setting.on_gpu[producer]).any(|producer| {
                            access.writes[producer].iter().any(|&columns| {
                                let crossing = Crossing { item: producer, columns };
                                columns.value == read.value && columns == *read && !arrived.contains(&crossing)
                            })
                        });
                        assert!(!missing, "{context}: item {item} reads what has not come");
                    }
                }
            }
            _ => {}
        }
    }
    let on_cpu = script.parts.iter().flat_map(|part| part.items.clone());
    on_cpu.for_each(|item| assert!(!setting.on_gpu[item] && made_at[item].replace(0).is_none(), "{context}"));
    assert!(made_at.iter().all(Option::is_some), "{context}: an item runs nowhere");
}

#[test]
fn random_schedules_of_every_model_keep_the_rules() {
    for name in ["llama", "gemma3", "qwen3moe", "gpt-oss", "qwen3next", "llama4", "deepseek2"] {
        let program = program(name);
        for seed in 0..40 {
            let setting = setting(&program, seed);
            let script = script(&program, &setting);
            let context = format!("{name}, seed {seed}");
            for is_eager in [false, true] {
                rounds_go_on(&script, &setting, is_eager, &context);
            }
            few_transfers_wait_for_a_part(&script, &context);
            what_is_read_has_come(&program, &script, &setting, &context);
        }
    }
}

#[test]
fn what_several_items_make_for_one_part_moves_at_once() {
    let program = program("qwen3moe");
    let on_cpu = |item: &plan_format::program::Item| {
        matches!(item.kind, ItemKind::Embedding | ItemKind::ExpertsInput | ItemKind::ExpertsOutput)
    };
    let on_gpu = program.items.iter().map(|item| !on_cpu(item)).collect();
    let setting = Setting { on_gpu, promotions: Vec::new(), slots: Slots::default(), routed: Vec::new() };
    let script = script(&program, &setting);
    let layers = script.parts.len() - 1;
    let of = |is: fn(&Command) -> bool| script.commands.iter().filter(|command| is(command)).count();
    // The residual and what the router makes go together, and so do the items of a layer.
    assert_eq!(of(|command| matches!(command, Command::Move(Side::Host, _))), layers + 1);
    assert_eq!(of(|command| matches!(command, Command::Run(..))), layers + 1);
}

#[test]
fn a_schedule_without_gpu_has_one_part_and_no_commands() {
    let program = program("qwen3");
    let on_gpu = vec![false; program.items.len()];
    let none = Setting { on_gpu, promotions: Vec::new(), slots: Slots::default(), routed: Vec::new() };
    let script = script(&program, &none);
    assert!(!script.uses_gpu());
    assert_eq!(script.parts.len(), 1);
    assert_eq!(script.parts[0].items, 0..program.items.len());
}
