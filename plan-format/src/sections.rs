//! Sections of the container: which there are, how each is encoded, and the two entry points [`to_bytes`] and
//! [`from_bytes`], both of which run the verifier.
//!
//! Structured sections are postcard: not self-describing, so a changed struct is a new version and both must be read.
//! postcard ignores what follows a value, hence [`decode`] refuses a rest. Large numeric tables are raw little-endian
//! arrays, whose lengths must be exactly those that the structured sections imply.
//! Next: `container.rs`, `verify/mod.rs`.

use crate::arena::Arena;
use crate::artifact::{MachineCode, Origin, Plan, Report};
use crate::container::{self, Section, SectionBytes};
use crate::costs::{CaseCosts, CostModel, ItemCost, Team};
use crate::error::{Error, Result};
use crate::ids::{ItemId, ScheduleId};
use crate::schedule::{Held, Home, Layout, Phase, Placement, RegimeMap, Slots};
use crate::verify::verify_plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of every section's encoding so far.
const V1: u32 = 1;

const ORIGIN: &str = "origin";
const PROGRAM: &str = "program";
const ARENA: &str = "arena";
const PLACES: &str = "places";
const SCHEDULES: &str = "schedule";
const REGIMES: &str = "regimes";
const REGIME_CELLS: &str = "reg.cell";
const COSTS: &str = "costs";
const COST_TABLE: &str = "cost.tab";
const REPORT: &str = "report";
const CODE: &str = "code";
const CODE_BYTES: &str = "code.bin";
const FULL_HASH: &str = "fullhash";
const HELD: &str = "held";

/// Every section of a file, in order. The last two may be missing.
const ALL: [&str; 14] = [
    ORIGIN,
    PROGRAM,
    ARENA,
    PLACES,
    SCHEDULES,
    REGIMES,
    REGIME_CELLS,
    COSTS,
    COST_TABLE,
    REPORT,
    CODE,
    CODE_BYTES,
    FULL_HASH,
    HELD,
];

/// Placement, layouts and slots.
#[derive(Serialize, Deserialize)]
struct PlacesV1 {
    homes: Vec<Home>,
    layouts: Vec<Vec<Layout>>,
    slots: Slots,
}

/// What is held between prompts.
#[derive(Serialize, Deserialize)]
struct HeldV1 {
    held: Held,
    few_arena: Arena,
}

/// Axes of the regime map; the cells are a raw table.
#[derive(Serialize, Deserialize)]
struct RegimesV1 {
    phases: Vec<Phase>,
    context_tokens: Vec<u32>,
    cpu_slowdown: Vec<f32>,
    gpu_slowdown: Vec<f32>,
    link_slowdown: Vec<f32>,
}

/// The cost model without its times.
#[derive(Serialize, Deserialize)]
struct CostsV1 {
    teams: Vec<Team>,
    input_start: Vec<u32>,
    inputs: Vec<ItemId>,
    cases: Vec<CaseV1>,
}

/// Heading of one case's times.
#[derive(Serialize, Deserialize)]
struct CaseV1 {
    phase: Phase,
    context_tokens: u32,
    gap_us: f32,
}

/// Heading of one module's code.
#[derive(Serialize, Deserialize)]
struct CodeV1 {
    module: String,
    ptx_hash: [u8; 32],
    size_bytes: u64,
}

/// The file of a plan, which is verified first.
///
/// # Errors
/// The plan breaks an invariant.
pub fn to_bytes(plan: &Plan) -> Result<Vec<u8>> {
    verify_plan(plan)?;
    let places =
        PlacesV1 { homes: plan.placement.homes.clone(), layouts: plan.layouts.clone(), slots: plan.slots.clone() };
    let code: Vec<CodeV1> = plan.code.iter().map(code_heading).collect();
    let raw = |name, bytes| SectionBytes { name, version: V1, bytes };
    let mut sections = vec![
        encode(ORIGIN, &plan.origin)?,
        encode(PROGRAM, &plan.program)?,
        encode(ARENA, &plan.arena)?,
        encode(PLACES, &places)?,
        encode(SCHEDULES, &plan.schedules)?,
        encode(REGIMES, &regime_axes(&plan.regimes))?,
        raw(REGIME_CELLS, plan.regimes.cells.iter().flat_map(|cell| cell.0.to_le_bytes()).collect()),
        encode(COSTS, &cost_heading(&plan.costs))?,
        raw(COST_TABLE, cost_table(&plan.costs)),
        encode(REPORT, &plan.report)?,
        encode(CODE, &code)?,
        raw(CODE_BYTES, plan.code.iter().flat_map(|code| code.bytes.iter().copied()).collect()),
    ];
    sections.extend(plan.full_hash.map(|hash| raw(FULL_HASH, hash.to_vec())));
    if let Some(few_arena) = &plan.few_arena {
        let held = HeldV1 { held: plan.placement.held.clone(), few_arena: few_arena.clone() };
        sections.push(encode(HELD, &held)?);
    }
    Ok(container::write(&sections))
}

/// The plan in a file, verified.
///
/// # Errors
/// The first thing that is wrong with it; never a panic, whatever the bytes.
pub fn from_bytes(file: &[u8]) -> Result<Plan> {
    let sections = container::read(file)?;
    let bytes = |name| find(&sections, name);
    exactly_these(&sections)?;
    let places: PlacesV1 = decode(PLACES, bytes(PLACES)?)?;
    let axes: RegimesV1 = decode(REGIMES, bytes(REGIMES)?)?;
    let costs: CostsV1 = decode(COSTS, bytes(COSTS)?)?;
    let code: Vec<CodeV1> = decode(CODE, bytes(CODE)?)?;
    let held: Option<HeldV1> = match is_present(&sections, HELD) {
        true => Some(decode(HELD, bytes(HELD)?)?),
        false => None,
    };
    let (held, few_arena) = held.map(|section| (section.held, section.few_arena)).unzip();
    let plan = Plan {
        origin: decode::<Origin>(ORIGIN, bytes(ORIGIN)?)?,
        program: decode(PROGRAM, bytes(PROGRAM)?)?,
        arena: decode(ARENA, bytes(ARENA)?)?,
        few_arena,
        placement: Placement { homes: places.homes, held: held.unwrap_or_default() },
        layouts: places.layouts,
        slots: places.slots,
        schedules: decode(SCHEDULES, bytes(SCHEDULES)?)?,
        regimes: regime_map(axes, bytes(REGIME_CELLS)?)?,
        costs: cost_model(costs, bytes(COST_TABLE)?)?,
        report: decode::<Report>(REPORT, bytes(REPORT)?)?,
        code: machine_code(code, bytes(CODE_BYTES)?)?,
        full_hash: full_hash(&sections)?,
    };
    verify_plan(&plan)?;
    Ok(plan)
}

/// What made a plan and for what, without decoding the rest: to tell quickly whether a file is the one looked for.
///
/// # Errors
/// The file is damaged or of another version.
pub fn origin(file: &[u8]) -> Result<Origin> {
    decode(ORIGIN, find(&container::read(file)?, ORIGIN)?)
}

fn find<'a>(sections: &[Section<'a>], name: &'static str) -> Result<&'a [u8]> {
    let section = sections.iter().find(|section| section.name == name);
    let section = section.ok_or(Error::SectionSet { section: name.to_owned(), problem: "is missing" })?;
    if section.version != V1 {
        return Err(Error::SectionVersion { section: name, found: section.version, supported: V1 });
    }
    Ok(section.bytes)
}

fn is_present(sections: &[Section<'_>], name: &str) -> bool {
    sections.iter().any(|section| section.name == name)
}

fn full_hash(sections: &[Section<'_>]) -> Result<Option<[u8; 32]>> {
    if !is_present(sections, FULL_HASH) {
        return Ok(None);
    }
    let bytes = find(sections, FULL_HASH)?;
    let hash = bytes.try_into().map_err(|_| encoding(FULL_HASH, format!("a hash has 32 bytes, not {}", bytes.len())));
    hash.map(Some)
}

fn exactly_these(sections: &[Section<'_>]) -> Result<()> {
    for (i, section) in sections.iter().enumerate() {
        let fault = |problem| Err(Error::SectionSet { section: section.name.clone(), problem });
        if !ALL.contains(&section.name.as_str()) {
            return fault("is unknown");
        }
        if sections[..i].iter().any(|earlier| earlier.name == section.name) {
            return fault("stands twice");
        }
    }
    Ok(())
}

fn encode(name: &'static str, value: &impl Serialize) -> Result<SectionBytes> {
    let bytes = postcard::to_stdvec(value).map_err(|error| encoding(name, error.to_string()))?;
    Ok(SectionBytes { name, version: V1, bytes })
}

fn decode<T: DeserializeOwned>(name: &'static str, bytes: &[u8]) -> Result<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|error| encoding(name, error.to_string()))?;
    match rest.len() {
        0 => Ok(value),
        left => Err(encoding(name, format!("{left} bytes follow its content"))),
    }
}

fn encoding(section: &'static str, problem: String) -> Error {
    Error::Encoding { section, problem }
}

/// Little-endian 32-bit words of a raw table.
fn words(name: &'static str, bytes: &[u8]) -> Result<impl Iterator<Item = u32> + Clone> {
    if !bytes.len().is_multiple_of(4) {
        return Err(encoding(name, format!("its {} bytes are no 32-bit numbers", bytes.len())));
    }
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
}

fn regime_axes(map: &RegimeMap) -> RegimesV1 {
    RegimesV1 {
        phases: map.phases.clone(),
        context_tokens: map.context_tokens.clone(),
        cpu_slowdown: map.cpu_slowdown.clone(),
        gpu_slowdown: map.gpu_slowdown.clone(),
        link_slowdown: map.link_slowdown.clone(),
    }
}

/// The verifier compares the number of cells with the axes.
fn regime_map(axes: RegimesV1, cells: &[u8]) -> Result<RegimeMap> {
    Ok(RegimeMap {
        phases: axes.phases,
        context_tokens: axes.context_tokens,
        cpu_slowdown: axes.cpu_slowdown,
        gpu_slowdown: axes.gpu_slowdown,
        link_slowdown: axes.link_slowdown,
        cells: words(REGIME_CELLS, cells)?.map(ScheduleId).collect(),
    })
}

fn cost_heading(costs: &CostModel) -> CostsV1 {
    let cases = costs.cases.iter();
    CostsV1 {
        teams: costs.teams.clone(),
        input_start: costs.input_start.clone(),
        inputs: costs.inputs.clone(),
        cases: cases.map(|c| CaseV1 { phase: c.phase, context_tokens: c.context_tokens, gap_us: c.gap_us }).collect(),
    }
}

/// No item, in the raw table.
const NO_ITEM: u32 = u32::MAX;

/// Words of one item in the raw table: five F32 and an item id.
const ITEM_WORDS: usize = 6;

/// Per case: CPU times, then the item's other times.
fn cost_table(costs: &CostModel) -> Vec<u8> {
    let mut table = Vec::new();
    for case in &costs.cases {
        table.extend(case.cpu_us.iter().flat_map(|us| us.to_le_bytes()));
        for item in &case.items {
            let times = [item.gpu_us, item.stream_us, item.to_gpu_us, item.to_cpu_us, item.dram_share];
            table.extend(times.iter().flat_map(|us| us.to_le_bytes()));
            table.extend(item.stream_after.map_or(NO_ITEM, |item| item.0).to_le_bytes());
        }
    }
    table
}

fn cost_model(heading: CostsV1, table: &[u8]) -> Result<CostModel> {
    let items = heading.input_start.len().saturating_sub(1);
    let case_words = items.checked_mul(heading.teams.len() + ITEM_WORDS);
    let expected = case_words.and_then(|n| n.checked_mul(heading.cases.len()));
    let mut words = words(COST_TABLE, table)?;
    if expected != Some(table.len() / 4) {
        let problem = format!("it has {} numbers, expected {expected:?}", table.len() / 4);
        return Err(encoding(COST_TABLE, problem));
    }
    let cpu_words = items * heading.teams.len();
    let cases = heading.cases.into_iter().map(|case| {
        let cpu_us = words.by_ref().take(cpu_words).map(f32::from_bits).collect();
        let rest: Vec<u32> = words.by_ref().take(items * ITEM_WORDS).collect();
        let items = rest.chunks_exact(ITEM_WORDS).map(item_cost).collect();
        CaseCosts { phase: case.phase, context_tokens: case.context_tokens, gap_us: case.gap_us, cpu_us, items }
    });
    let cases = cases.collect();
    Ok(CostModel { teams: heading.teams, input_start: heading.input_start, inputs: heading.inputs, cases })
}

fn item_cost(words: &[u32]) -> ItemCost {
    let us = |i: usize| f32::from_bits(words[i]);
    ItemCost {
        gpu_us: us(0),
        stream_us: us(1),
        to_gpu_us: us(2),
        to_cpu_us: us(3),
        dram_share: us(4),
        stream_after: (words[5] != NO_ITEM).then_some(ItemId(words[5])),
    }
}

fn code_heading(code: &MachineCode) -> CodeV1 {
    CodeV1 { module: code.module.clone(), ptx_hash: code.ptx_hash, size_bytes: code.bytes.len() as u64 }
}

fn machine_code(headings: Vec<CodeV1>, mut bytes: &[u8]) -> Result<Vec<MachineCode>> {
    let mut code = Vec::with_capacity(headings.len());
    for CodeV1 { module, ptx_hash, size_bytes } in headings {
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let Some((own, rest)) = bytes.split_at_checked(size) else {
            return Err(encoding(CODE_BYTES, format!("the code of {module} ends beyond it")));
        };
        code.push(MachineCode { module, ptx_hash, bytes: own.to_vec() });
        bytes = rest;
    }
    match bytes.len() {
        0 => Ok(code),
        left => Err(encoding(CODE_BYTES, format!("{left} bytes belong to no module"))),
    }
}
