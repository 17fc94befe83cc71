#!/usr/bin/env bash
# CPU and GPU together on a machine with an NVIDIA GPU: kernels, all reference models under budgets, full-size models
# under a ceiling and resident, and the peer on the same files. Writes its tables to OUT, prints a summary.
# usage: run-hybrid.sh BIN OUT [PEER]
#   BIN   folder with ats-plan, ats-run, fixtures, and optionally the example cuda_check and the test cuda_models
#   OUT   folder for results
#   PEER  folder with llama-bench, its libraries and ballast
# environment: MODELS (qwen3-14b), VRAM (6G), RESIDENT (40G), DEVICE (measured; else a profile: sim:h200-16core), SPACE
# (/dev/shm), STEPS (check tiny model peer: which to run), DEPTH (2048), REPETITIONS (3)
set -u
BIN=$(cd "$1" && pwd) OUT=$(mkdir -p "$2" && cd "$2" && pwd) PEER=${3:-}
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
SPACE=$(mktemp -d "${SPACE:-/dev/shm}/ats.XXXXXX")
trap 'rm -rf "$SPACE"' EXIT
export ATS_REFERENCE=$ROOT/fixtures/reference
export XDG_CACHE_HOME=$SPACE/cache XDG_STATE_HOME=$SPACE/state
MODELS=${MODELS:-qwen3-14b} VRAM=${VRAM:-6G} RESIDENT=${RESIDENT:-40G}
DEPTH=${DEPTH:-2048} REPETITIONS=${REPETITIONS:-3} STEPS=${STEPS:-check tiny model peer}
# A plan for a named profile runs on real hardware only when asked to.
PLAN_FLAGS=() RUN_FLAGS=()
if [ -n "${DEVICE:-}" ]; then PLAN_FLAGS=(--device "$DEVICE") RUN_FLAGS=(--force-device); fi

has() { case " $STEPS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# step NAME SECONDS COMMAND...: runs it, keeps its output, prints one line.
step() {
    local name=$1 limit=$2 start code
    shift 2
    start=$EPOCHREALTIME
    timeout "$limit" "$@" >"$OUT/$name.txt" 2>&1
    code=$?
    local verdict=ok
    [ $code = 0 ] || verdict="FAILED $code"
    printf '%-34s %s %6.1f s  %s\n' "$name" "$verdict" "$(awk "BEGIN { print $EPOCHREALTIME - $start }")" \
        "$(tail -n 1 "$OUT/$name.txt" | cut -c1-150)" | tee -a "$OUT/summary.txt"
    return $code
}

# Most GPU memory in use from `watch_memory` to `peak_memory`, by the driver's own count.
watch_memory() {
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$1" &
    watcher=$!
}
peak_memory() {
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    echo "  peak GPU memory: $(sort -n "$1" | tail -n 1) MiB" | tee -a "$OUT/summary.txt"
}

# One budget of one model: plan, speed at depth, memory.
budget() {
    local model=$1 name=$2 vram=$3 plan=$SPACE/$2-$3.atsplan
    step "$name-$vram-compile" 120 "$BIN/ats-plan" compile "$model" --vram "$vram" --out "$plan" "${PLAN_FLAGS[@]}" \
        --context $((DEPTH + 2048 + 64)) || return 1
    watch_memory "$OUT/$name-$vram-memory.csv"
    step "$name-$vram-bench" 240 "$BIN/ats-run" bench "$model" --plan "$plan" "${RUN_FLAGS[@]}" \
        -p 2048 -n 64 -d "$DEPTH" -r "$REPETITIONS"
    peak_memory "$OUT/$name-$vram-memory.csv"
    tail -n 8 "$OUT/$name-$vram-bench.txt"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$OUT/summary.txt"
step devices 30 "$BIN/ats-run" devices
if has check && [ -x "$BIN/cuda_check" ]; then step kernels 120 "$BIN/cuda_check"; fi
if has check && [ -x "$BIN/cuda_models" ]; then
    step models 300 "$BIN/cuda_models" --ignored --nocapture every_family_on_the_gpu
fi
if [ -z "${DEVICE:-}" ]; then step profile 120 "$BIN/ats-plan" profile; fi

if has tiny; then
    for model in "$ROOT"/fixtures/reference/tiny-*.gguf; do
        name=$(basename "$model" .gguf)
        for vram in 4G 700M 0; do
            plan=$SPACE/$name-$vram.atsplan
            step "$name-$vram-compile" 60 "$BIN/ats-plan" compile "$model" --vram "$vram" --out "$plan" \
                --context 512 "${PLAN_FLAGS[@]}" &&
                step "$name-$vram-verify" 60 "$BIN/ats-run" verify "$model" --plan "$plan" "${RUN_FLAGS[@]}"
        done
    done
fi

for name in $MODELS; do
    has model || has peer || continue
    model=$SPACE/$name.gguf
    step "$name-write" 300 "$BIN/fixtures" write "$name" --out "$model" || continue
    if has model; then
        budget "$model" "$name" "$VRAM"
        budget "$model" "$name" "$RESIDENT"
    fi
    if has peer && [ -n "$PEER" ]; then
        mib=$((${VRAM%G} * 1024))
        LD_LIBRARY_PATH=$PEER "$PEER/ballast" "$mib" >"$OUT/ballast.txt" &
        ballast=$!
        sleep 3
        step "$name-peer-$VRAM" 200 env LD_LIBRARY_PATH="$PEER" "$PEER/llama-bench" -m "$model" \
            -p 2048 -n 64 -d "$DEPTH" -r "$REPETITIONS" -fitt 256
        kill $ballast
        wait $ballast 2>/dev/null
        tail -n 8 "$OUT/$name-peer-$VRAM.txt"
    fi
    rm -f "$model"
done
