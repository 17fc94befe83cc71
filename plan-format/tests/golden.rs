//! The format stands still: the committed file of each version is read, means what it meant, and is written again with
//! the same bytes. A change that fails here needs a new section version that reads the old one too. To record the file
//! of a new version: `ATSPLAN_RECORD=1 cargo test -p plan-format --test golden`.

mod common;

use plan_format::artifact::Plan;
use plan_format::sections::{from_bytes, origin, to_bytes};
use plan_format::text::{Detail, plan_text};
use std::path::PathBuf;

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1.atsplan")
}

#[test]
fn version_1_is_read_and_written_as_ever() {
    let written = to_bytes(&common::plan()).unwrap();
    if std::env::var_os("ATSPLAN_RECORD").is_some() {
        std::fs::write(golden(), &written).unwrap();
    }
    let file = std::fs::read(golden()).unwrap();
    let plan = from_bytes(&file).unwrap();
    assert_eq!(plan, common::plan());
    assert_eq!(written, file, "the same plan gives other bytes");
    assert_eq!(origin(&file).unwrap(), plan.origin);
}

#[test]
fn the_hash_of_the_whole_model_is_kept_where_there_is_one() {
    let plan = Plan { full_hash: Some([9; 32]), ..common::plan() };
    let file = to_bytes(&plan).unwrap();
    assert_eq!(from_bytes(&file).unwrap(), plan);
    assert!(plan_text(&plan, Detail::Summary).contains("BLAKE3 0909"), "{}", plan_text(&plan, Detail::Summary));
}

#[test]
fn what_is_held_is_kept_and_shown() {
    let plan = common::holding_plan();
    assert_eq!(from_bytes(&to_bytes(&plan).unwrap()).unwrap(), plan);
    let text = plan_text(&plan, Detail::Summary);
    assert!(text.contains("held      2 items") && text.contains("router output"), "{text}");
}

#[test]
fn the_text_of_a_plan_is_as_recorded() {
    insta::assert_snapshot!(plan_text(&common::plan(), Detail::Program));
}
