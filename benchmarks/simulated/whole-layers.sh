#!/bin/sh
# Compares plans of the paper's models with whole layers at equal GPU memory, simulated, and prints the table as CSV.
# Usage, from the project's root, with what `cargo build --release -p planner -p fixtures` made:
#   benchmarks/simulated/whole-layers.sh target/release > benchmarks/simulated/DATE-whole-layers.csv
# Workload, chunked prefill and ceilings as in the paper: 2048 tokens read, 128 written, rounds of at most 512 (laptop)
# or 2048 tokens (desktop), the GPU filled but for 256 MiB.
set -eu
binaries=$1
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
compare() {
    machine=$1 ceiling=$2 ubatch=$3
    shift 3
    for model in "$@"; do
        "$binaries/fixtures" write "$model" --sparse --out "$folder/$model.gguf" >&2
        "$binaries/ats-plan" report "$folder/$model.gguf" --device "sim:$machine" --vram "$ceiling" --context 4096 \
            --prompt 2048 --generate 128 --ubatch "$ubatch" --csv "$folder/$model.csv" >&2
        if [ -z "${headed:-}" ]; then head -n 1 "$folder/$model.csv"; fi
        headed=yes
        tail -n +2 "$folder/$model.csv"
    done
}
compare rtx3060-laptop 5744M 512 glm-z1-9b qwen3-14b qwen3-30b-a3b gpt-oss-20b
compare rtx4090-desktop 23344M 2048 llama-3.1-70b qwen3-next-80b-a3b qwen3.5-122b-a10b gpt-oss-120b
