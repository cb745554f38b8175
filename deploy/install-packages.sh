#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that lossd is built with, or names them if it may not.
# usage: install-packages.sh [build] [test] [python] [lint]    (default: build)
set -euo pipefail

build=(g++ cmake ninja-build make pkg-config protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
       libgrpc++-dev libgrpc-dev libabsl-dev nlohmann-json3-dev libopenblas0-pthread)
test=(libgtest-dev libgmock-dev)
python=(python3 python3-numpy python3-pip python3-pytest python3-setuptools python3-torch python3-venv python3-wheel)
lint=(clang-format-14)

wanted=()
for group in "${@:-build}"; do
  case $group in
    build) wanted+=("${build[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    python) wanted+=("${python[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    *) echo "install-packages.sh: no package group $group (build, test, python, lint)" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" != 0 ]; then
  echo "lossd needs these packages; as root: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
