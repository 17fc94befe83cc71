//! Replays the fuzz corpus: what a fuzzer once needed to reach every check, without the fuzzer.
//! The same oracle runs under the fuzzer, see `fuzz/`.

use std::path::Path;

#[test]
fn every_file_of_the_corpus_passes_the_oracle() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/parse");
    let mut accepted = 0;
    let mut refused = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("the corpus is in the source tree") {
        let bytes = std::fs::read(entry.expect("listed").path()).expect("readable");
        gguf::oracle::check_parse(&bytes);
        match gguf::parse(&bytes) {
            Ok(_) => accepted += 1,
            Err(error) => _ = refused.insert(format!("{error:?}").split([' ', '(']).next().unwrap_or("").to_owned()),
        }
    }
    // The corpus must reach most checks, or it tests little.
    assert!(accepted >= 8, "{accepted}");
    assert!(refused.len() >= 15, "{refused:?}");
}
