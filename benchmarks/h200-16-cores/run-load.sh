#!/usr/bin/env bash
# Decoding while others take cores, GPU and link: the schedule of no load kept throughout against load-aware, on models
# written here. Per model: switches, phases of load under a ceiling of GPU memory, and on the CPU alone; under 250 s.
# usage: run-load.sh BIN OUT
#   BIN  folder with ats-plan, ats-run, fixtures
#   OUT  folder for results: NAME-load.{txt,csv,html}, NAME-cpu-load.{txt,csv,html}, summary.txt
# environment: MODELS (qwen3-14b qwen3-30b-a3b), VRAM (6G), LOAD (cpu=60,link=60,gpu=60), SECONDS_PER_PHASE (7),
# DEPTH (2048), DEVICE (measured; else a profile: sim:h200-16core), SPACE (/dev/shm), STEPS (hybrid cpu long)
set -u
BIN=$(cd "$1" && pwd) OUT=$(mkdir -p "$2" && cd "$2" && pwd)
SPACE=$(mktemp -d "${SPACE:-/dev/shm}/ats.XXXXXX")
trap 'rm -rf "$SPACE"' EXIT
export XDG_CACHE_HOME=$SPACE/cache XDG_STATE_HOME=$SPACE/state
MODELS=${MODELS:-qwen3-14b qwen3-30b-a3b} VRAM=${VRAM:-6G} LOAD=${LOAD:-cpu=60,link=60,gpu=60}
PHASE=${SECONDS_PER_PHASE:-7} DEPTH=${DEPTH:-2048} STEPS=${STEPS:-hybrid cpu}
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
    printf '%-28s %s %6.1f s\n' "$name" "$verdict" "$(awk "BEGIN { print $EPOCHREALTIME - $start }")" |
        tee -a "$OUT/summary.txt"
    [ $code = 0 ] || tail -n 4 "$OUT/$name.txt" | tee -a "$OUT/summary.txt"
    return $code
}

# load MODEL NAME PLAN LOAD: the table is the result.
load() {
    step "$2" 170 "$BIN/ats-run" bench "$1" --plan "$3" "${RUN_FLAGS[@]}" -p 0 -n 0 -d "$DEPTH" --switches \
        --load "$4" --phase-seconds "$PHASE" --timeline "$OUT/$2.csv" --timeline "$OUT/$2.html"
    grep -v '^load:' "$OUT/$2.txt" | head -n 40 | cut -c1-220 | tee -a "$OUT/summary.txt"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$OUT/summary.txt"
if [ -z "${DEVICE:-}" ]; then step profile 120 "$BIN/ats-plan" profile; fi

for name in $MODELS; do
    model=$SPACE/$name.gguf
    step "$name-write" 200 "$BIN/fixtures" write "$name" --out "$model" || continue
    context=$((DEPTH + 2048 + 512))
    if has hybrid; then
        step "$name-compile" 120 "$BIN/ats-plan" compile "$model" --vram "$VRAM" --context $context \
            --out "$SPACE/$name.atsplan" "${PLAN_FLAGS[@]}" && load "$model" "$name-load" "$SPACE/$name.atsplan" "$LOAD"
    fi
    if has cpu; then
        step "$name-cpu-compile" 120 "$BIN/ats-plan" compile "$model" --vram 0 --context $context \
            --out "$SPACE/$name-cpu.atsplan" "${PLAN_FLAGS[@]}" &&
            DEPTH=128 load "$model" "$name-cpu-load" "$SPACE/$name-cpu.atsplan" "cpu=60"
    fi
    if has long; then
        step "$name-long" 200 "$BIN/ats-run" bench "$model" --plan "$SPACE/$name.atsplan" "${RUN_FLAGS[@]}" \
            -p 0 -n 2048 -d "$DEPTH" -r 1
        tail -n 8 "$OUT/$name-long.txt" | tee -a "$OUT/summary.txt"
    fi
    rm -f "$model"
done
