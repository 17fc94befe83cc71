//! Replays the fuzz corpus: every input that was once of interest, through the fuzz target's oracle.

use std::path::Path;

#[test]
fn the_corpus_holds_nothing_that_breaks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/plan");
    let inputs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    for input in inputs {
        plan_format::oracle::check_plan(&std::fs::read(&input).unwrap());
    }
}
