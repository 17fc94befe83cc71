//! Scripts of all reference models under random sets of resident and streamed items, played by a machine that knows
//! nothing but the rules: nobody waits for ever, slots are used in turn, and what crosses has crossed when it is read.

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

/// Plays a round: worker 0 queues up to each horizon, the GPU runs as far as it may.
struct Player<'a> {
    script: &'a Script,
    queued: usize,
    executed: usize,
    parts_done: usize,
    signals: Vec<usize>,
}

impl Player<'_> {
    fn queue(&mut self, until: usize, context: &str) {
        while self.queued < until {
            if let Command::Fill(promotion) = self.script.commands[self.queued] {
                match self.script.known[promotion] {
                    Some(Known::Part(part)) => assert!(part < self.parts_done, "{context}: a fill before its router"),
                    Some(Known::Signal(number)) => {
                        self.run();
                        assert!(self.signals.contains(&number), "{context}: a fill waits for ever");
                    }
                    None => {}
                }
            }
            self.queued += 1;
        }
        self.run();
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

fn nobody_waits_for_ever(script: &Script, context: &str) {
    let mut player = Player { script, queued: 0, executed: 0, parts_done: 0, signals: Vec::new() };
    for (index, part) in script.parts.iter().enumerate() {
        player.queue(script.urgent[index], context);
        if let Some(needed) = part.needs {
            assert!(player.signals.contains(&needed), "{context}: part {index} waits for signal {needed} for ever");
        }
        player.queue(script.horizons[index], context);
        player.parts_done = index + 1;
        player.run();
    }
    player.queue(script.commands.len(), context);
    assert_eq!(player.executed, script.commands.len(), "{context}: the GPU waits for ever");
    assert!(
        script.commands.is_empty() || matches!(script.commands.last(), Some(Command::Signal(_) | Command::Fill(_)))
    );
}

/// While a part runs, few transfers stand behind the wait for it: a driver has no room for many.
fn few_transfers_wait_for_a_part(script: &Script, context: &str) {
    for (index, (part, &horizon)) in script.parts.iter().zip(&script.horizons).enumerate() {
        let waits = |command: &Command| matches!(command, Command::WaitCpu(waited) if *waited >= index);
        let wait = script.commands.iter().position(waits).unwrap_or(script.commands.len());
        let signal = |command: &Command| matches!(command, Command::Signal(number) if Some(*number) == part.needs);
        let needed = script.commands.iter().position(signal).map_or(0, |position| position + 1);
        let behind = script.commands[wait.min(horizon)..horizon].iter();
        let fills = behind.filter(|command| matches!(command, Command::Fill(_))).count();
        assert!(fills <= FILLS_AHEAD || horizon == needed, "{context}: {fills} transfers behind part {index}");
    }
}

/// Slots are filled, read and released in turn, over as many rounds as one likes.
fn slots_are_used_in_turn(script: &Script, setting: &Setting, context: &str) {
    let mut holds: Vec<Option<usize>> = vec![None; setting.slots.slots.len()];
    for &promotion in &script.ahead {
        let slot = &mut holds[setting.promotions[promotion].slot.index()];
        assert_eq!(slot.replace(promotion), None, "{context}: two transfers for one slot at the start");
    }
    let start = holds.clone();
    for command in &script.commands {
        match command {
            Command::Fill(promotion) => {
                let slot = &mut holds[setting.promotions[*promotion].slot.index()];
                assert_eq!(slot.replace(*promotion), None, "{context}: a slot filled before it was released");
            }
            Command::Run(_, Some(promotion)) => {
                let slot = holds[setting.promotions[*promotion].slot.index()];
                assert_eq!(slot, Some(*promotion), "{context}: a slot holds another item");
            }
            Command::Release(slot) => holds[slot.index()] = None,
            _ => {}
        }
    }
    assert_eq!(holds, start, "{context}: the next round begins with other slots");
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
            nobody_waits_for_ever(&script, &context);
            slots_are_used_in_turn(&script, &setting, &context);
            few_transfers_wait_for_a_part(&script, &context);
            what_is_read_has_come(&program, &script, &setting, &context);
        }
    }
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
