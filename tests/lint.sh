#!/usr/bin/env bash
# Format, arrows, file sizes, stale reference, unregistered tests, TODO without an issue. Prints what is wrong and fails.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { echo "lint: $*"; bad=1; }

mapfile -t sources < <(find proto server kernels client tests -name build -prune -o -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.c' \) -print | sort)

tests/layers.sh || complain "includes against the arrows (above)"

if command -v clang-format-14 >/dev/null; then
  unformatted=$(clang-format-14 --dry-run --Werror "${sources[@]}" 2>&1 | sed -nE 's/^([^: ]+):[0-9]+:[0-9]+: error.*/\1/p' | sort -u)
  [ -z "$unformatted" ] || complain "not formatted (make format): $unformatted"
else
  echo "lint: clang-format-14 is not installed"; exit 77
fi

while read -r lines file; do
  [ "$file" = total ] || [ "$lines" -le 600 ] || complain "$file has $lines lines; 600 is the limit"
done < <(wc -l "${sources[@]}" $(find client -name '*.py') proto/lossd/v1/*.proto)

for test in $(find tests -name '*_test.cc' -o -name '*_test.c'); do
  grep -q "${test#tests/}" tests/CMakeLists.txt tests/*/CMakeLists.txt 2>/dev/null || \
    grep -rq "$(basename "$test")" tests/CMakeLists.txt tests/*/CMakeLists.txt 2>/dev/null || complain "$test is not registered"
done

todo=$(grep -nwE 'TODO|FIXME|XXX' "${sources[@]}" | grep -vE 'TODO\(#[0-9]+\)')
[ -z "$todo" ] || complain "TODO without an issue: $todo"

# Words that speak of a machine rather than of the project.
paths=$(grep -nE '/(home|root|Users)/[a-z]' "${sources[@]}" Makefile README.md CMakeLists.txt deploy -r 2>/dev/null)
[ -z "$paths" ] || complain "machine paths: $paths"

# usage: lint.sh [build directory]: with one, the generated reference is compared too.
if [ $# -ge 1 ] && [ -x "$1/bin/ops_doc" ]; then
  "$1/bin/ops_doc" "$1/generated/ops.desc" | cmp -s - proto/OPERATIONS.md || complain "proto/OPERATIONS.md is stale (make docs)"
fi
exit $bad
