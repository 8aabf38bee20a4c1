#!/bin/bash
# scripts/check-layering must refuse what it is there to refuse: each wrong include in a small tree of its own.
set -euo pipefail
check="$(cd "$(dirname "$0")/.." && pwd)/scripts/check-layering"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir "$tree"/{core,quant,nn,tests}

expect() {  # status, file, include, what the output must say
  printf '#include "%s"\n' "$3" >"$tree/$2"
  local status=0 output
  output=$("$check" "$tree" 2>&1) || status=$?
  if [ "$status" -ne "$1" ] || [[ $output != *"$4"* ]]; then
    printf '%s including %s: status %s, output:\n%s\n' "$2" "$3" "$status" "$output" >&2
    exit 1
  fi
  rm "$tree/$2"
}
expect 0 quant/codec.h core/error.h "1 includes are in order"
expect 0 tests/codec_test.cc quant/codec.h "1 includes are in order"
expect 1 core/error.h quant/codec.h 'core/error.h:1: core may not include "quant/codec.h"'
expect 1 nn/network.cc comm/transport.h 'nn/network.cc:1: nn may not include "comm/transport.h"'
expect 1 quant/codec.cc tests/reference.h 'quant may not include "tests/reference.h"'
expect 1 quant/codec.cc codec.h "from the repository's root"
