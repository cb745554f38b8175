#!/bin/bash
# Everything that needs a GPU, from binaries that were built elsewhere with LOSSD_STATIC=ON. Prints a short table last.
# Usage: tests/gpu/run.sh BINARIES_DIR VECTORS_DIR [quick]
# Exits with 1 if a line says FAIL.
set -u
binaries=$1
vectors=$2
quick=${3:-}
logs=$(mktemp -d)
table=()
status=0
# The CUDA libraries of a Python installation serve where the toolkit's are not in the loader's path.
libraries=$(python3 -c 'import nvidia.cu13, os; print(os.path.join(list(nvidia.cu13.__path__)[0], "lib"))' 2>/dev/null || true)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64${libraries:+:$libraries}

# line NAME SECONDS COMMAND...: runs with a limit, keeps the log, notes PASS, FAIL or SKIP.
line() {
  local name=$1 seconds=$2
  shift 2
  local begin=$SECONDS
  if [ "$(type -t "$1")" = function ]; then "$@" >"$logs/$name.log" 2>&1; else timeout "$seconds" "$@" >"$logs/$name.log" 2>&1; fi
  local rc=$? word=PASS
  [ $rc -eq 77 ] && word=SKIP
  [ $rc -ne 0 ] && [ $rc -ne 77 ] && word=FAIL && status=1
  if [ $word = FAIL ]; then
    echo "--- $name (exit $rc)"
    grep -E 'FAILED|Failure|error|ERROR|status' "$logs/$name.log" | head -20
    tail -25 "$logs/$name.log"
  else
    grep -E '^  ' "$logs/$name.log"
  fi
  table+=("$(printf '%-28s %-5s %4d s  %s' "$name" "$word" $((SECONDS - begin)) "$(grep -E '^\[  PASSED|^ERROR SUMMARY|========= ERROR' "$logs/$name.log" | tail -1)")")
}

line vectors 240 "$binaries/cuda_parity_test" "$vectors" --gtest_filter='*VectorsTest*'
if [ "$quick" != quick ]; then
  line bench 200 "$binaries/bench_head"
fi
line parity 400 "$binaries/cuda_parity_test" "$vectors" --gtest_filter='-*VectorsTest*'
line layers 120 "$binaries/layer_parity_test"
# Two processes have the same bits.
digest() { "$binaries/cuda_parity_test" "$vectors" --gtest_filter='RestartTest.*' | grep digest; }
same_bits() { local first; first=$(digest) && echo "$first" && [ "$first" = "$(digest)" ]; }
line restart 60 same_bits
if command -v compute-sanitizer >/dev/null; then
  line memcheck 300 compute-sanitizer --tool memcheck --error-exitcode 3 \
    "$binaries/cuda_parity_test" "$vectors" --gtest_filter='*InvarianceTest*:ExpEpilogue*:ParityTest.RaggedVocabulary'
else
  table+=("$(printf '%-28s %-5s %s' memcheck SKIP 'compute-sanitizer is not installed')")
fi

echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
printf '%s\n' "${table[@]}"
exit $status
