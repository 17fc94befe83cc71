#!/usr/bin/env bash
# Head to head on the CPU: ats-run bench against llama.cpp's llama-bench, same files, same threads, in alternation.
# One line per model, number of threads and test: medians of the runs of both, and their ratio. Then OUT-open.csv: our
# seconds from the start of the program to its end after one token that follows a prompt of 16, with the plan made and
# the file in the page cache; its threads are the plan's.
#
#   benchmarks/peer-cpu.sh ATS_RUN LLAMA_BENCH OUT.csv MODEL.gguf ...
#
# RUNS=7 THREADS="1 2" PROMPT=512 GENERATE=128 change what is measured; the values shown are the default. The peer runs
# without and with flash attention, with its weights repacked; the better of the two counts. Each run is a process of
# its own, and within one run the programs take turns, so that a machine that slows down slows all of them.
set -euo pipefail

if [ $# -lt 4 ]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
ats_run=$1 peer=$2 out=$3
shift 3
runs=${RUNS:-7} threads_list=${THREADS:-1 2} prompt=${PROMPT:-512} generate=${GENERATE:-128}

# Tokens per second of our prefill and decode, one line each.
ours() { # model threads
    "$ats_run" bench "$1" --threads "$2" --prompt "$prompt" --generate "$generate" --repetitions 1 --format csv |
        python3 -c 'import csv, sys
for row in csv.DictReader(sys.stdin): print(row["median_tokens_per_s"])'
}

# The same of the peer.
theirs() { # model threads flash-attention
    "$peer" -m "$1" -t "$2" -p "$prompt" -n "$generate" -r 1 -fa "$3" -ngl 0 -o csv 2>/dev/null |
        python3 -c 'import csv, sys
for row in csv.DictReader(sys.stdin): print(row["avg_ts"])'
}

# Seconds of opening a model, reading 16 tokens and writing one.
open_seconds() { # model
    local start=$EPOCHREALTIME
    "$ats_run" generate "$1" --tokens "$folder/prompt" --max-tokens 1 --ignore-eos >"$folder/text" 2>"$folder/log" ||
        { cat "$folder/log" >&2 && return 1; }
    awk -v start="$start" -v end="$EPOCHREALTIME" 'BEGIN { print end - start }'
}

median() { sort -g | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
machine=$(awk -F': *' '/^model name/ { print $2; exit }' /proc/cpuinfo)
flags="pp$prompt tg$generate; peer -fa 0 and 1, -ngl 0, -r 1; runs $runs"
echo 'date,machine,model,threads,test,ours_tokens_per_s,peer_tokens_per_s,ratio,peer_flash_attention,flags' >"$out"
for model in "$@"; do
    for threads in $threads_list; do
        rm -f "$folder"/*
        for run in $(seq "$runs"); do
            ours "$model" "$threads" >"$folder/run"
            sed -n 1p "$folder/run" >>"$folder/ours-pp" && sed -n 2p "$folder/run" >>"$folder/ours-tg"
            for fa in 0 1; do
                theirs "$model" "$threads" "$fa" >"$folder/run"
                sed -n 1p "$folder/run" >>"$folder/peer-pp-$fa" && sed -n 2p "$folder/run" >>"$folder/peer-tg-$fa"
            done
            echo "$(basename "$model"), $threads threads: run $run of $runs" >&2
        done
        for kind in pp tg; do
            test=$([ $kind = pp ] && echo "pp$prompt" || echo "tg$generate")
            mine=$(median <"$folder/ours-$kind")
            without=$(median <"$folder/peer-$kind-0") with=$(median <"$folder/peer-$kind-1")
            awk -v date="$(date -u +%F)" -v machine="$machine" -v model="$(basename "$model")" -v threads="$threads" \
                -v test="$test" -v mine="$mine" -v without="$without" -v with="$with" -v flags="$flags" 'BEGIN {
                    best = (with > without) ? with : without
                    printf "%s,\"%s\",%s,%s,%s,%.2f,%.2f,%.3f,%d,\"%s\"\n", date, machine, model, threads, test,
                        mine, best, mine / best, (with > without), flags
                }' | tee -a "$out"
        done
    done
done

opened=${out%.csv}-open.csv
seq -s ' ' 100 115 >"$folder/prompt"
echo 'date,machine,model,median_s,least_s,most_s,runs' >"$opened"
for model in "$@"; do
    open_seconds "$model" >/dev/null # makes the plan, warms the page cache
    for _ in $(seq "$runs"); do open_seconds "$model"; done >"$folder/opened"
    echo "$(date -u +%F),\"$machine\",$(basename "$model"),$(median <"$folder/opened"),$(sort -g "$folder/opened" |
        sed -n '1p;$p' | paste -sd,),$runs" | tee -a "$opened"
done
