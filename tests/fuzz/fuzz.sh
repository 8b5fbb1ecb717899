#!/bin/sh
# usage: CMAKE=... PYTHON=... fuzz.sh [seconds] -- run by `make fuzz`: builds the target with clang under ASan and UBSan, writes
# the seeds, fuzzes, and reports the result. The corpus stays in build/fuzz/corpus and is used again in the next run.
set -eu
seconds=${1:-1800}
for name in ${CLANG:-} clang++ clang++-19 clang++-16 clang++-14; do
    command -v "$name" >/dev/null 2>&1 && clang=$name && break
done
if [ -z "${clang:-}" ]; then
    echo "clang++ was not found; install it with 'sudo apt-get install clang libclang-rt-dev' or set CLANG= to one" >&2
    exit 1
fi
folder=build/fuzz
mkdir -p $folder/corpus $folder/seeds $folder/found
PATH="$(dirname "$PYTHON"):$PATH"
{
    "$CMAKE" -S . -B $folder -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" \
        -DCMAKE_CXX_COMPILER="$clang" -DWALLE_MODULE=OFF -DWALLE_FUZZ=ON -DWALLE_SANITIZE=address,undefined &&
        "$CMAKE" --build $folder --target fuzz_model
} >$folder/build.log 2>&1 || { tail -n 40 $folder/build.log >&2; exit 1; }
"$PYTHON" -W ignore tests/fuzz/seeds.py $folder/seeds
echo "fuzzing for $seconds seconds; the log is $folder/fuzz.log"
status=0
UBSAN_OPTIONS=print_stacktrace=1 $folder/tests/fuzz/fuzz_model -max_total_time="$seconds" -max_len=8192 -timeout=25 \
    -rss_limit_mb=3000 -artifact_prefix=$folder/found/ -print_final_stats=1 $folder/corpus $folder/seeds \
    >$folder/fuzz.log 2>&1 || status=$?
inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' $folder/fuzz.log)
covered=$(grep -oE 'cov: [0-9]+ ft: [0-9]+' $folder/fuzz.log | tail -n 1)
echo "${inputs:-0} inputs, ${covered:-no coverage} (edges and features), corpus of $(find $folder/corpus -type f | wc -l)"
if [ "$status" -ne 0 ]; then
    grep -E 'ERROR|runtime error|SUMMARY' $folder/fuzz.log | head -n 3 >&2
    tail -n 3 $folder/fuzz.log >&2
    echo "the model that failed is in $folder/found; fix the bug and add the model to tests/fuzz/regressions" >&2
    exit 1
fi
echo "nothing found"
