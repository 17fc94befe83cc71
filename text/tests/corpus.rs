//! Replays the fuzz corpora: what a fuzzer needs to reach every check, without the fuzzer. The same oracles run under
//! the fuzzer, see `fuzz/`.

use std::path::Path;

fn replay(corpus: &str, oracle: fn(&[u8]), least_files: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(corpus);
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is in the source tree") {
        let path = entry.expect("listed").path();
        println!("{}", path.display());
        oracle(&std::fs::read(path).expect("readable"));
        files += 1;
    }
    assert!(files >= least_files, "{files} files");
}

#[test]
fn every_text_of_the_corpus_is_tokenised() {
    replay("tokenizer", text::oracle::check_tokenizer, 90);
}

#[test]
fn every_vocabulary_of_the_corpus_is_refused_or_works() {
    replay("vocabulary", text::oracle::check_vocabulary, 25);
}

#[test]
fn every_template_of_the_corpus_is_refused_or_rendered() {
    replay("template", text::oracle::check_template, 15);
}
