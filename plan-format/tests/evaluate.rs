//! The evaluator on rounds small enough to compute by hand.

use plan_format::costs::{CaseCosts, CostModel, ItemCost, Load, Team};
use plan_format::evaluate::{Busy, EvaluateError, FreedIn, Horizon, Prepared, Scratch, Stream, busy, evaluate};
use plan_format::schedule::{Home, HostMemory, Phase, Placement, Promotion, Schedule, Slot, Slots};
use plan_format::{ItemId, SlotId};

const HOST: Home = Home::Host(HostMemory::Pinned);

/// A chain of items (cpu, gpu, stream) in microseconds; switches cost 3 to the GPU and 2 to the CPU.
fn chain(items: &[(f32, f32, f32)], contention: (f32, f32)) -> CostModel {
    let n = items.len() as u32;
    let cost = |&(_, gpu_us, stream_us): &(f32, f32, f32)| ItemCost {
        gpu_us,
        stream_us,
        to_gpu_us: 3.0,
        to_cpu_us: 2.0,
        dram_share: 1.0,
        stream_after: None,
    };
    CostModel {
        teams: vec![Team { threads: 4, cpu_slowdown_while_link: contention.0, link_slowdown_while_cpu: contention.1 }],
        input_start: (0..=n).map(|i| i.saturating_sub(1)).collect(),
        inputs: (0..n - 1).map(ItemId).collect(),
        cases: vec![CaseCosts {
            phase: Phase::Decode,
            context_tokens: 2048,
            gap_us: 0.0,
            cpu_us: items.iter().map(|item| item.0).collect(),
            items: items.iter().map(cost).collect(),
        }],
    }
}

fn schedule(promoted: &[u32], slots: u32) -> Schedule {
    let promotion = |(index, &item): (usize, &u32)| Promotion {
        item: ItemId(item),
        slot: SlotId(index as u32 % slots),
        after: None,
    };
    Schedule {
        phase: Phase::Decode,
        cpu_threads: 4,
        promotions: promoted.iter().enumerate().map(promotion).collect(),
        predicted_us: 0.0,
    }
}

fn slots(count: u64) -> Slots {
    Slots { slots: (0..count).map(|i| Slot { offset_bytes: 256 * i, size_bytes: 256 }).collect() }
}

fn prepare(model: &CostModel, homes: &[Home], promoted: &[u32], count: u64) -> Result<Prepared, EvaluateError> {
    let placement = Placement::new(homes.to_vec());
    Prepared::new(model, &model.cases[0], &placement, &slots(count), &schedule(promoted, count as u32))
}

fn latency(model: &CostModel, homes: &[Home], promoted: &[u32], count: u64, load: &Load, horizon: Horizon) -> f64 {
    let prepared = prepare(model, homes, promoted, count).unwrap();
    evaluate(model, &model.cases[0], &prepared, load, horizon, &mut Scratch::default())
}

#[test]
fn a_chain_without_promotions_takes_the_sum_of_items_and_switches() {
    let model = chain(&[(10.0, 1.0, 5.0), (20.0, 2.0, 9.0), (30.0, 3.0, 9.0)], (1.0, 1.0));
    let homes = [HOST, Home::Resident, HOST];
    // 10 + switch 3 + 2 + switch 2 + 30
    assert_eq!(latency(&model, &homes, &[], 1, &Load::IDLE, Horizon::Steady), 47.0);
    let slow = Load { cpu: 2.0, gpu: 3.0, link: 4.0, free_threads: f64::INFINITY };
    assert_eq!(latency(&model, &homes, &[], 1, &slow, Horizon::Steady), 20.0 + 12.0 + 6.0 + 8.0 + 60.0);
}

#[test]
fn a_team_larger_than_the_free_cores_waits_for_them() {
    let model = chain(&[(10.0, 1.0, 0.0)], (1.0, 1.0));
    let load = Load { free_threads: 2.0, ..Load::IDLE };
    assert_eq!(latency(&model, &[HOST], &[], 1, &load, Horizon::Steady), 20.0);
}

#[test]
fn a_transfer_hides_behind_earlier_items_and_the_rest_is_exposed() {
    let model = chain(&[(10.0, 1.0, 0.0), (50.0, 2.0, 8.0)], (1.0, 1.0));
    let cold = Horizon::Cold { rounds: 1 };
    // Hidden: 10 + 3 + 2.
    assert_eq!(latency(&model, &[HOST, HOST], &[1], 1, &Load::IDLE, cold), 15.0);
    // The link is 4 times slower: the transfer ends at 32, after 10 + 12.
    let slow = Load { link: 4.0, ..Load::IDLE };
    assert_eq!(latency(&model, &[HOST, HOST], &[1], 1, &slow, cold), 34.0);
}

#[test]
fn a_decode_loop_streams_ahead_into_the_next_round() {
    // The only transfer takes 8; it starts when the slot's reader is done, at the end of the round before, and has
    // the 6 of item 0 to hide: a round is 2 + 8.
    let model = chain(&[(3.0, 1.0, 0.0), (50.0, 2.0, 8.0)], (1.0, 1.0));
    assert_eq!(latency(&model, &[HOST, HOST], &[1], 1, &Load::IDLE, Horizon::Steady), 10.0);
    // Item 2 hides the rest when it follows the reader: switch 2 + 30 before the next round.
    let model = chain(&[(3.0, 1.0, 0.0), (50.0, 2.0, 8.0), (30.0, 9.0, 0.0)], (1.0, 1.0));
    assert_eq!(latency(&model, &[HOST; 3], &[1], 1, &Load::IDLE, Horizon::Steady), 3.0 + 3.0 + 2.0 + 2.0 + 30.0);
}

#[test]
fn one_slot_serialises_transfers_and_their_readers() {
    let items = [(9.0, 2.0, 10.0), (9.0, 2.0, 10.0)];
    let model = chain(&items, (1.0, 1.0));
    let cold = Horizon::Cold { rounds: 1 };
    // copy 10, read 2, copy 10, read 2
    assert_eq!(latency(&model, &[HOST; 2], &[0, 1], 1, &Load::IDLE, cold), 24.0);
    // copy 10, copy 10 while the first is read, read 2
    assert_eq!(latency(&model, &[HOST; 2], &[0, 1], 2, &Load::IDLE, cold), 22.0);
}

#[test]
fn cpu_and_link_slow_each_other_down_while_both_read_dram() {
    let model = chain(&[(10.0, 1.0, 0.0), (50.0, 2.0, 8.0)], (1.5, 2.0));
    // Together: the copy needs 16, in which the CPU does 16 / 1.5 > 10; so the CPU ends at 15, the copy has
    // 8 - 7.5 = 0.5 left and ends at 15.5, before the activations arrive at 18.
    let cold = Horizon::Cold { rounds: 1 };
    assert_eq!(latency(&model, &[HOST, HOST], &[1], 1, &Load::IDLE, cold), 20.0);
}

#[test]
fn a_routed_transfer_waits_for_its_router() {
    let mut model = chain(&[(10.0, 1.0, 0.0), (50.0, 2.0, 8.0)], (1.0, 1.0));
    model.cases[0].items[1].stream_after = Some(ItemId(0));
    let cold = Horizon::Cold { rounds: 1 };
    assert_eq!(latency(&model, &[HOST, HOST], &[1], 1, &Load::IDLE, cold), 10.0 + 8.0 + 2.0);
    // A resident router is known to the CPU after its switch.
    assert_eq!(latency(&model, &[Home::Resident, HOST], &[1], 1, &Load::IDLE, cold), 1.0 + 2.0 + 8.0 + 2.0);
}

#[test]
fn processors_work_at_once_where_the_graph_allows() {
    // 0 on the CPU feeds 1 (GPU) and 2 (CPU); 3 joins them on the CPU.
    let mut model = chain(&[(10.0, 1.0, 0.0), (50.0, 20.0, 0.0), (25.0, 1.0, 0.0), (1.0, 1.0, 0.0)], (1.0, 1.0));
    model.input_start = vec![0, 0, 1, 2, 4];
    model.inputs = vec![ItemId(0), ItemId(0), ItemId(1), ItemId(2)];
    let homes = [HOST, Home::Resident, HOST, HOST];
    // max(10 + 3 + 20 + 2, 10 + 25) + 1
    assert_eq!(latency(&model, &homes, &[], 1, &Load::IDLE, Horizon::Steady), 36.0);
}

#[test]
fn slots_are_freed_by_the_latest_reader_before_cyclically() {
    let model = chain(&[(9.0, 2.0, 10.0); 5], (1.0, 1.0));
    let prepared = prepare(&model, &[HOST; 5], &[0, 1, 2, 3, 4], 2).unwrap();
    let stream = |item, freed_by, freed_in| Stream { item, freed_by, freed_in };
    let expected = [
        stream(0, 4, FreedIn::PreviousRound),
        stream(1, 3, FreedIn::PreviousRound),
        stream(2, 0, FreedIn::SameRound),
        stream(3, 1, FreedIn::SameRound),
        stream(4, 2, FreedIn::SameRound),
    ];
    assert_eq!(prepared.streams, expected);
}

#[test]
fn schedules_that_break_the_rules_are_refused_by_name() {
    let model = chain(&[(9.0, 2.0, 10.0), (9.0, 2.0, 10.0), (9.0, 2.0, 0.0)], (1.0, 1.0));
    let table: [(&[Home], &[u32], &str); 5] = [
        (&[Home::Resident, HOST, HOST], &[0], "promotion 0 (item 0): the item is on the GPU anyway"),
        (&[HOST, HOST, HOST], &[1, 0], "promotion 1 (item 0): transfers must be in the order of the items"),
        (&[HOST, HOST, HOST], &[2], "promotion 0 (item 2): the item has nothing to stream"),
        (&[HOST, HOST, HOST], &[7], "promotion 0 (item 7): no such item"),
        (&[HOST, HOST], &[], "the placement has 2 homes but the cost model has 3 items"),
    ];
    for (homes, promoted, message) in table {
        assert_eq!(prepare(&model, homes, promoted, 2).unwrap_err().to_string(), message);
    }
}

#[test]
fn what_is_busy_for_how_long_counts_what_cpu_and_link_cost_each_other() {
    // Item 1 is streamed (12 alone) while the CPU works on item 0 (10 alone); both slow each other down by half.
    let model = chain(&[(10.0, 1.0, 0.0), (40.0, 4.0, 12.0)], (1.5, 1.5));
    let prepared = prepare(&model, &[HOST, HOST], &[1], 1).unwrap();
    let case = &model.cases[0];
    let busy = busy(&model, case, &prepared, &Load::IDLE, &mut Scratch::default());
    // A round: 4 of the transfer beside nobody (item 1 has just left the slot), or all of it beside item 0.
    assert!(busy.cpu_us > 10.0 && busy.cpu_us <= 15.0, "{busy:?}");
    assert!(busy.link_us > 12.0 && busy.link_us <= 18.0, "{busy:?}");
    assert_eq!(busy.gpu_us, 4.0);
    let alone = prepare(&model, &[HOST, HOST], &[], 1).unwrap();
    let slow = Load { cpu: 2.0, ..Load::IDLE };
    let all_cpu = plan_format::evaluate::busy(&model, case, &alone, &slow, &mut Scratch::default());
    assert_eq!(all_cpu, Busy { cpu_us: 100.0, gpu_us: 0.0, link_us: 0.0 });
}
