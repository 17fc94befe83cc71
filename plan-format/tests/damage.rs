//! Damaged and hostile plans: an error that names the place, never a panic and never a plan.

mod common;

use plan_format::container::{self, SectionBytes};
use plan_format::oracle::check_plan;
use plan_format::sections::{from_bytes, to_bytes};
use plan_format::{Error, program::OpKind};
use proptest::prelude::*;

fn file() -> Vec<u8> {
    to_bytes(&common::holding_plan()).unwrap()
}

#[test]
fn every_truncation_is_an_error() {
    let file = file();
    for length in 0..file.len() {
        assert!(from_bytes(&file[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn every_flipped_bit_is_an_error() {
    let mut file = file();
    for bit in 0..file.len() * 8 {
        file[bit / 8] ^= 1 << (bit % 8);
        assert!(from_bytes(&file).is_err(), "bit {bit}");
        file[bit / 8] ^= 1 << (bit % 8);
    }
}

/// The sections of the good file, to be changed; writing them again makes the checksums right.
fn sections() -> Vec<SectionBytes> {
    let file = file();
    let sections = container::read(&file).unwrap();
    let own = |s: &container::Section<'_>| SectionBytes {
        name: Box::leak(s.name.clone().into_boxed_str()),
        version: s.version,
        bytes: s.bytes.to_vec(),
    };
    sections.iter().map(own).collect()
}

#[test]
fn damage_with_right_checksums_never_panics() {
    // Each byte of each section takes a few values: lengths, ids, enum tags and figures of all sizes.
    let good = sections();
    for section in 0..good.len() {
        for at in 0..good[section].bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = good.clone();
                damaged[section].bytes[at] = value;
                if let Ok(plan) = from_bytes(&container::write(&damaged)) {
                    // What is accepted must be a whole plan: it can be written and read.
                    assert_eq!(from_bytes(&to_bytes(&plan).unwrap()).unwrap(), plan);
                }
            }
        }
    }
}

#[test]
fn cut_sections_with_right_checksums_are_errors_that_name_them() {
    let good = sections();
    for section in 0..good.len() {
        for length in 0..good[section].bytes.len() {
            let mut damaged = good.clone();
            damaged[section].bytes.truncate(length);
            assert!(from_bytes(&container::write(&damaged)).is_err(), "{} cut at {length}", good[section].name);
        }
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Vec<SectionBytes>), expected: &str) {
    let mut sections = sections();
    change(&mut sections);
    let error = from_bytes(&container::write(&sections)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn missing_unknown_doubled_and_newer_sections_are_named() {
    check(|s| drop(s.remove(1)), "section program is missing");
    check(|s| s.push(SectionBytes { name: "extra", version: 1, bytes: Vec::new() }), "section extra is unknown");
    check(|s| s.push(s[0].clone()), "section origin stands twice");
    check(|s| s[2].version = 2, "section arena has version 2; this program reads version 1");
    check(|s| s[1].bytes.push(0), "section program cannot be decoded: 1 bytes follow its content");
    check(|s| s[6].bytes.push(0), "section reg.cell cannot be decoded");
    check(|s| s[8].bytes.truncate(8), "section cost.tab cannot be decoded");
}

#[test]
fn another_version_of_the_container_is_named() {
    let mut file = file();
    file[8] += 1;
    assert_eq!(from_bytes(&file), Err(Error::Version { found: 2, supported: 1 }));
}

#[test]
fn huge_lengths_take_no_memory() {
    // A length of 2^63 before the program's first string, tensors and so on.
    for at in [0, 1, 9, 10] {
        check(
            |s| {
                let huge = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
                drop(s[1].bytes.splice(at..at + 1, huge));
            },
            "section program",
        );
    }
}

#[test]
fn the_program_in_the_plan_is_not_trivial() {
    // The tests above are worth as much as what they damage.
    let kinds: std::collections::BTreeSet<&str> = common::program().ops.iter().map(|op| op.kind.name()).collect();
    assert!(kinds.len() >= 11, "{kinds:?}");
    assert!(common::plan().program.ops.iter().any(|op| matches!(op.kind, OpKind::ExpertMatMul { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn random_edits_pass_the_fuzz_oracle(
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..9)), 1..4),
    ) {
        let mut file = file();
        for (at, bytes) in edits {
            let at = at.index(file.len());
            let end = file.len().min(at + bytes.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
        }
        check_plan(&file);
    }
}
