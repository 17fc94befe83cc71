//! A schedule as a script: what the CPU team does in parts, what is queued on the GPU, and who waits for whom.
//!
//! Items run in program order on each processor. Consecutive CPU items form a part; everything for the GPU forms one
//! queue in submission order. An activation that the other processor reads is moved once: to the GPU before its first
//! reader there, to the host after its producer. Waits come from data and from memory: both arenas reuse bytes, so a
//! move into the host's arena must not overtake CPU work on what lay there before, nor CPU work a move out of it.
//! Pure; made at load, one per schedule. Not here: carrying it out (`driver.rs`). Next: `script/ahead.rs`.

mod ahead;
#[cfg(test)]
mod tests;

use super::crossings::{Crossing, Crossings, ItemAccess, Side};
use ahead::{Queue, placed};
use plan_format::arena::Arena;
use plan_format::operands::Columns;
use plan_format::program::Program;
use plan_format::schedule::{Promotion, Slots};
use plan_format::{SlotId, ValueId};
use std::collections::BTreeSet;
use std::ops::Range;

/// What a script is made from.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The program.
    pub program: &'a Program,
    /// What its items read and write.
    pub access: &'a ItemAccess,
    /// Where values lie, on both sides.
    pub arena: &'a Arena,
    /// Which items execute on the GPU, promoted ones included.
    pub on_gpu: &'a [bool],
    /// Promotions in item order.
    pub promotions: &'a [Promotion],
    /// Temporary memory.
    pub slots: &'a Slots,
    /// By promotion: the ids of the experts that its transfer brings; `None` = it brings all.
    pub routed: &'a [Option<Columns>],
}

/// See the module text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// Work of the CPU team, in order.
    pub parts: Vec<CpuPart>,
    /// The GPU's queue, in order. Empty if nothing runs there; else it ends with a signal that ends the round.
    pub commands: Vec<Command>,
    /// Transfers, in order. Queueing one takes long (14 us for 4 MiB on the H200 machine), so it is done in pieces
    /// wherever worker 0 has time between the two commands.
    pub fills: Vec<Fill>,
    /// How many commands are queued before each part begins: those that its inputs come from.
    pub needed: Vec<usize>,
    /// How many commands may be queued before each part ends.
    pub horizons: Vec<usize>,
    /// How many transfers may be queued before each part ends.
    pub fill_limits: Vec<usize>,
    /// Promotions whose transfers are queued in the round before.
    pub ahead: Vec<usize>,
    /// By promotion: when the host knows the experts to bring, if it must.
    pub known: Vec<Option<Known>>,
}

/// From when on the host knows which experts a round has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This CPU part has ended.
    Part(usize),
    /// This signal has come.
    Signal(usize),
}

/// Consecutive items on the CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuPart {
    /// The items.
    pub items: Range<usize>,
    /// The signal of the GPU that must have come before it begins, by number.
    pub needs: Option<usize>,
    /// Values that it reads (`false`) and writes (`true`).
    pub touches: Vec<(ValueId, Touch)>,
}

/// What a part does with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touch {
    /// Only reads it.
    Read,
    /// Writes it.
    Write,
}

/// An entry of the GPU's queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Go on after this CPU part.
    WaitCpu(usize),
    /// Tell the CPU, by the signal's number.
    Signal(usize),
    /// Copy activations to the side.
    Move(Side, Vec<Crossing>),
    /// Operators of these items; of one item if it is promoted.
    Run(Range<usize>, Option<usize>),
    /// Operators from now on may read the slot.
    Read(SlotId),
    /// Operators so far were its last readers.
    Release(SlotId),
}

/// Fills the slot of a promotion, on the transfer stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Which promotion.
    pub promotion: usize,
    /// Commands that are queued before it: up to the slot's last readers, and what tells the experts.
    pub after: usize,
    /// The command that it is queued before: the first reader. All of them for a transfer of the next round.
    pub before: usize,
}

impl Script {
    /// The script of a schedule. The plan has been verified.
    pub fn new(scene: Scene<'_>) -> Script {
        let mut writer = Writer {
            scene,
            crossings: Crossings::new(
                scene.access,
                scene.program.values.len(),
                scene.on_gpu,
                scene.routed.iter().copied().flatten(),
            ),
            parts: Vec::new(),
            commands: Vec::new(),
            needs: Vec::new(),
            moved_in: Vec::new(),
            moved_out: Vec::new(),
            waited: None,
            releases: vec![0; scene.promotions.len()],
        };
        for item in 0..scene.program.items.len() {
            if scene.on_gpu[item] { writer.gpu_item(item) } else { writer.cpu_item(item) }
        }
        writer.finish()
    }

    /// Whether anything runs on the GPU.
    pub fn uses_gpu(&self) -> bool {
        !self.commands.is_empty()
    }
}

struct Writer<'a> {
    scene: Scene<'a>,
    crossings: Crossings<'a>,
    parts: Vec<CpuPart>,
    commands: Vec<Command>,
    /// Per part: number of commands that must be done before it begins.
    needs: Vec<usize>,
    /// Values read in the host's arena by moves, with the number of commands up to the move.
    moved_in: Vec<(ValueId, usize)>,
    /// Columns moved to the host, likewise.
    moved_out: Vec<(Crossing, usize)>,
    /// The last part that the queue waits for.
    waited: Option<usize>,
    /// Number of commands up to each promotion's release.
    releases: Vec<usize>,
}

impl Writer<'_> {
    fn gpu_item(&mut self, item: usize) {
        let arriving = self.crossings.arriving(item, Side::Gpu);
        if let Some(part) = arriving.iter().map(|crossing| self.part_of(crossing.item)).max() {
            self.wait(part);
        }
        if !arriving.is_empty() {
            let position = self.commands.len() + 1;
            self.moved_in.extend(arriving.iter().map(|crossing| (crossing.columns.value, position)));
            self.commands.push(Command::Move(Side::Gpu, arriving));
        }
        self.run(item);
        let leaving = self.crossings.leaving(item);
        if leaving.is_empty() {
            return;
        }
        let reused = leaving.iter().filter_map(|crossing| self.last_part_on_bytes_of(crossing.columns.value)).max();
        if let Some(part) = reused {
            self.wait(part);
        }
        let position = self.commands.len() + 1;
        self.moved_out.extend(leaving.iter().map(|&crossing| (crossing, position)));
        self.commands.push(Command::Move(Side::Host, leaving));
    }

    /// The item's operators; an item that follows the one before it without anything between joins its run.
    fn run(&mut self, item: usize) {
        if let Some(promotion) = self.scene.promotions.iter().position(|promotion| promotion.item.index() == item) {
            let slot = self.scene.promotions[promotion].slot;
            self.commands.extend([Command::Read(slot), Command::Run(item..item + 1, Some(promotion))]);
            self.commands.push(Command::Release(slot));
            self.releases[promotion] = self.commands.len();
            // Whoever overwrites the ids must not come before they were read for the transfer, which is before this.
            let ids = self.scene.routed[promotion].map(|ids| (ids.value, self.commands.len()));
            self.moved_in.extend(ids);
            return;
        }
        match self.commands.last_mut() {
            Some(Command::Run(items, None)) if items.end == item => items.end = item + 1,
            _ => self.commands.push(Command::Run(item..item + 1, None)),
        }
    }

    fn wait(&mut self, part: usize) {
        if self.waited < Some(part) {
            self.waited = Some(part);
            self.commands.push(Command::WaitCpu(part));
        }
    }

    fn part_of(&self, item: usize) -> usize {
        self.parts.iter().position(|part| part.items.contains(&item)).unwrap_or(0)
    }

    /// The last part so far that touches other values on the same bytes.
    fn last_part_on_bytes_of(&self, value: ValueId) -> Option<usize> {
        let clashes = |part: &CpuPart| part.touches.iter().any(|&(other, _)| self.clash(value, other));
        self.parts.iter().rposition(clashes)
    }

    /// Number of commands up to the last move that reads other values on the same bytes of the host's arena.
    fn last_move_in_from_bytes_of(&self, value: ValueId) -> Option<usize> {
        let clashing = self.moved_in.iter().filter(|(moved, _)| self.clash(value, *moved));
        clashing.map(|(_, position)| *position).max()
    }

    /// Whether two values share bytes.
    fn clash(&self, a: ValueId, b: ValueId) -> bool {
        let (a_bytes, b_bytes) = (self.bytes(a), self.bytes(b));
        a != b && a_bytes.start < b_bytes.end && b_bytes.start < a_bytes.end
    }

    fn bytes(&self, value: ValueId) -> Range<u64> {
        let Scene { program, arena, .. } = self.scene;
        let begin = arena.offsets_bytes[value.index()];
        begin..begin + arena.limits.value_bytes(&program.values[value.index()])
    }

    fn cpu_item(&mut self, item: usize) {
        let arriving = self.crossings.arriving(item, Side::Host);
        let made = |crossing: &Crossing| self.moved_out.iter().find(|(moved, _)| moved == crossing);
        let inputs = arriving.iter().filter_map(made).map(|(_, position)| *position);
        let touches = touches(self.scene.access, item);
        let reused = touches.iter().filter_map(|(value, _)| self.last_move_in_from_bytes_of(*value));
        let need = inputs.chain(reused).max().unwrap_or(0);
        match self.parts.last_mut() {
            Some(part) if part.items.end == item => {
                part.items.end = item + 1;
                part.touches.extend(touches);
            }
            _ => {
                self.parts.push(CpuPart { items: item..item + 1, needs: None, touches });
                self.needs.push(0);
            }
        }
        if let Some(last) = self.needs.last_mut() {
            *last = need.max(*last);
        }
    }

    /// Puts signals and fills where they belong, and numbers them.
    fn finish(mut self) -> Script {
        if self.commands.is_empty() {
            let horizons = vec![0; self.parts.len()];
            let (needed, fill_limits) = (horizons.clone(), horizons.clone());
            return Script { parts: self.parts, needed, horizons, fill_limits, ..Script::default() };
        }
        self.join_moves();
        let routes: Vec<Option<Route>> = self.scene.routed.iter().map(|ids| self.route((*ids)?)).collect();
        let (fills, ahead) = self.fills(&routes);
        let mut signalled: BTreeSet<usize> = self.needs.iter().copied().filter(|&need| need > 0).collect();
        signalled.insert(self.commands.len());
        signalled.extend(routes.iter().flatten().filter(|route| route.part.is_none()).map(|route| route.position));
        let mut commands = Vec::with_capacity(self.commands.len() + signalled.len());
        let mut numbers = Vec::new();
        // Where each command ends up, and the end.
        let mut places = vec![0];
        for (index, command) in self.commands.drain(..).enumerate() {
            commands.push(command);
            if signalled.contains(&(index + 1)) {
                commands.push(Command::Signal(numbers.len()));
                numbers.push(index + 1);
            }
            places.push(commands.len());
        }
        let fills = placed(&fills, &ahead, &places, &commands);
        for (part, need) in self.parts.iter_mut().zip(&self.needs) {
            part.needs = numbers.iter().position(|number| number == need);
            merge_touches(&mut part.touches);
        }
        let known = routes.iter().map(|route| {
            let route = route.as_ref()?;
            let signal = || numbers.iter().position(|&number| number == route.position).map(Known::Signal);
            route.part.map(Known::Part).or_else(signal)
        });
        let known: Vec<Option<Known>> = known.collect();
        let needed: Vec<usize> = self.parts.iter().map(|part| needed(part, &commands)).collect();
        let queue = Queue { commands: &commands, fills: &fills, known: &known };
        let horizons = queue.horizons(&needed);
        let fill_limits = (0..self.parts.len()).map(|part| queue.fill_limit(part)).collect();
        Script { parts: self.parts, commands, fills, needed, horizons, fill_limits, ahead, known }
    }

    /// Moves to the host that nobody needs before the next one are made with it: on the H200 machine a move of its own
    /// keeps the GPU 7 us.
    fn join_moves(&mut self) {
        let mut index = 0;
        while index < self.commands.len() {
            match self.joins(index) {
                Some(next) => self.join(index, next),
                None => index += 1,
            }
        }
    }

    /// The move to the host that the one at `index` may wait for.
    fn joins(&self, index: usize) -> Option<usize> {
        let Command::Move(Side::Host, crossings) = &self.commands[index] else { return None };
        let runs = |command: &&Command| matches!(command, Command::Run(..) | Command::Read(_) | Command::Release(_));
        let next = index + 1 + self.commands[index + 1..].iter().take_while(runs).count();
        let is_needed = self.needs.iter().any(|need| (index + 1..=next).contains(need));
        let tells_experts =
            |crossing: &Crossing| self.scene.routed.iter().flatten().any(|ids| ids.value == crossing.columns.value);
        let is_move = matches!(self.commands.get(next), Some(Command::Move(Side::Host, _)));
        (is_move && !is_needed && !crossings.iter().any(tells_experts)).then_some(next)
    }

    /// Makes the move at `index` part of the one at `next`; items on both sides of it become one run.
    fn join(&mut self, index: usize, next: usize) {
        let Command::Move(_, first) = self.remove(index) else { return };
        let next = next - 1;
        let moved = self.moved_out.iter_mut().filter(|(crossing, _)| first.contains(crossing));
        moved.for_each(|(_, position)| *position = next + 1);
        if let Command::Move(_, crossings) = &mut self.commands[next] {
            crossings.splice(0..0, first);
        }
        let Some(before) = index.checked_sub(1) else { return };
        if let [Command::Run(first, None), Command::Run(second, None)] = &self.commands[before..=index]
            && first.end == second.start
        {
            self.commands[before] = Command::Run(first.start..second.end, None);
            self.remove(index);
        }
    }

    /// Takes a command out.
    fn remove(&mut self, index: usize) -> Command {
        let moved = self.moved_in.iter_mut().map(|(_, position)| position);
        let moved = moved.chain(self.moved_out.iter_mut().map(|(_, position)| position));
        let positions = moved.chain(&mut self.needs).chain(&mut self.releases);
        positions.filter(|position| **position > index).for_each(|position| *position -= 1);
        self.commands.remove(index)
    }

    /// From when on the host knows these ids.
    fn route(&self, ids: Columns) -> Option<Route> {
        let router = self.scene.access.writes.iter().position(|writes| {
            writes.iter().any(|written| written.value == ids.value && written.first_col == ids.first_col)
        })?;
        if !self.scene.on_gpu[router] {
            let part = self.part_of(router);
            let after = |command: &Command| match command {
                Command::Run(items, _) => items.start > router,
                _ => false,
            };
            let mut position = self.commands.iter().position(after).unwrap_or(self.commands.len());
            let belongs = |command: &Command| {
                matches!(command, Command::Read(_) | Command::WaitCpu(_) | Command::Move(Side::Gpu, _))
            };
            while position > 0 && belongs(&self.commands[position - 1]) {
                position -= 1;
            }
            return Some(Route { position, part: Some(part) });
        }
        let moved =
            self.moved_out.iter().find(|(crossing, _)| crossing.item == router && crossing.columns.value == ids.value);
        moved.map(|(_, position)| Route { position: *position, part: None })
    }

    /// After how many commands each transfer is queued, in the order of the transfers, and which of them are for the
    /// next round: those whose slot has no earlier reader in a round.
    fn fills(&self, routes: &[Option<Route>]) -> (Vec<(usize, usize)>, Vec<usize>) {
        let promotions = self.scene.promotions;
        let overlap = |a: SlotId, b: SlotId| {
            let (a, b) = (self.scene.slots.slots[a.index()], self.scene.slots.slots[b.index()]);
            a.offset_bytes < b.offset_bytes + b.size_bytes && b.offset_bytes < a.offset_bytes + a.size_bytes
        };
        let freed = |range: Range<usize>, slot| {
            range.filter(move |&q| overlap(promotions[q].slot, slot)).map(|q| self.releases[q]).max()
        };
        let (mut this_round, mut ahead) = (Vec::new(), Vec::new());
        for (index, promotion) in promotions.iter().enumerate() {
            match (freed(0..index, promotion.slot), &routes[index]) {
                (freed, Some(route)) => this_round.push((freed.unwrap_or(0).max(route.position), index)),
                (Some(position), None) => this_round.push((position, index)),
                (None, None) => ahead.push(index),
            }
        }
        let next_round = ahead.iter().map(|&index| (freed(0..promotions.len(), promotions[index].slot), index));
        let next_round = next_round.map(|(position, index)| (position.unwrap_or(0), index));
        let mut fills: Vec<(usize, usize)> = this_round.into_iter().chain(next_round).collect();
        let mut latest = 0;
        for (position, _) in &mut fills {
            latest = latest.max(*position);
            *position = latest;
        }
        (fills, ahead)
    }
}

/// After how many commands the host can know the chosen experts, and after which CPU part if the router runs there.
struct Route {
    position: usize,
    part: Option<usize>,
}

/// Values that an item touches on the CPU.
fn touches(access: &ItemAccess, item: usize) -> Vec<(ValueId, Touch)> {
    let reads = access.reads[item].iter().map(|columns| (columns.value, Touch::Read));
    let writes = access.writes[item].iter().map(|columns| (columns.value, Touch::Write));
    reads.chain(writes).collect()
}

/// One entry per value; writing wins.
fn merge_touches(touches: &mut Vec<(ValueId, Touch)>) {
    touches.sort_unstable_by_key(|&(value, touch)| (value, std::cmp::Reverse(touch)));
    touches.dedup_by_key(|(value, _)| *value);
}

/// Number of commands up to the signal that a part needs.
fn needed(part: &CpuPart, commands: &[Command]) -> usize {
    let signal = |command: &Command| matches!(command, Command::Signal(number) if Some(*number) == part.needs);
    commands.iter().position(signal).map_or(0, |position| position + 1)
}
