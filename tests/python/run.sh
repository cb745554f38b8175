#!/usr/bin/env bash
# Runs the Python tests against a build directory, with the first Python that has torch and pytest; exits 77 (skipped) where none has.
# usage: run.sh BUILD_DIR [pytest options] [test files]    (default: all of this folder)
set -euo pipefail
tests=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
chosen=("$tests")
for argument in "$@"; do
  case $argument in -*) ;; *.py*) chosen=() ;; esac
done
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import numpy, pytest, torch' 2>/dev/null; then
    export PYTHONPATH="$tests/../../client/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
    exec "$python" -m pytest -q -p no:cacheprovider --build-dir "$build" "${chosen[@]}" "$@"
  fi
done
echo "skipped: no Python with torch, numpy and pytest (Debian: python3-torch python3-numpy python3-pytest)"
exit 77
