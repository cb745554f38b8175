#!/usr/bin/env bash
# Makes a folder that tests/gpu/go.sh takes to a machine with a GPU and torch: server, client library and what that needs, wheels of peers.
# usage: tests/gpu/bundle.sh SERVER CLIENT_BUILD OUT [WHEEL...]
# SERVER: bin/lossd of a build with LOSSD_STATIC=ON and CUDA. CLIENT_BUILD: one with LOSSD_STATIC=OFF, of the same sources.
set -euo pipefail
server=$1 client=$2 out=$3
shift 3
mkdir -p "$out"/{bin,lib,generated,wheels,peers}
strip -o "$out/bin/lossd" "$server"
strip -o "$out/lib/liblossd_client.so" "$client/lib/liblossd_client.so"
cp "$client/generated/ops.desc" "$out/generated/"
# As client/python/setup.py: all but what every Linux has.
ldd "$client/lib/liblossd_client.so" | awk '$2 == "=>" {print $1, $3}' |
  grep -vE '^(ld-linux[^ ]*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+))\.so' |
  while read -r name path; do cp -L "$path" "$out/lib/$name"; done
[ $# -eq 0 ] || cp "$@" "$out/wheels/"
du -sh "$out"
