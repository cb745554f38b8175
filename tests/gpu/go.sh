#!/usr/bin/env bash
# minutes: 9.5
# lossd beside other implementations (tests/bench/compare.py) on a machine with a GPU and torch but without our build, from a folder that
# tests/gpu/bundle.sh made. Wheels that lie in it are installed into a folder of their own; packages in its peers/ are found too.
# usage: tests/gpu/go.sh BUNDLE OUT [--quick, --case, ...: arguments of compare.py]
set -euo pipefail
bundle=$(cd "$1" && pwd)
out=$2
shift 2
tree=$(cd "$(dirname "$0")/../.." && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
wheels=("$bundle"/wheels/*.whl)
if [ -e "${wheels[0]}" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "${wheels[@]}"
fi
# The CUDA libraries of a Python installation serve where the toolkit's are not in the loader's path.
libraries=$(python3 -c 'import nvidia.cu13, os; print(os.path.join(list(nvidia.cu13.__path__)[0], "lib"))' 2>/dev/null || true)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64${libraries:+:$libraries} PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
python3 "$tree/tests/bench/compare.py" --build "$bundle" --out "$out" --peer-path "$site" --peer-path "$bundle/peers" "$@"
