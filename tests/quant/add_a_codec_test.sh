#!/bin/bash
# Follows docs/add-a-codec.md: a copy of quant with the page's codec and one more line in the list is built, and
# the codec is parsed and used on every instruction set and, in builds with CUDA, on the GPU where there is one.
# usage: add_a_codec_test.sh SOURCE BUILD_FOLDER COMPILER GPU GPU_COMPILER [LIBRARY...]
#   GPU: none, cuda or emulated; GPU_COMPILER: the command that compiles for it
set -euo pipefail
source=$1 work=$2 compiler=$3 gpu=$4 gpu_compiler=$5
shift 5
rm -rf "$work"
mkdir -p "$work"
cp -r "$source/quant" "$work/quant"
awk '/^```cpp/ {inside = 1; next} /^```/ {inside = 0} inside' "$source/docs/add-a-codec.md" > "$work/quant/codecs/toy.cc"
# The one line (the last of the list has no backslash).
sed -i 's/^  codec(mx, MxOptions)$/& \\\n  codec(toy, NoOptions)/' "$work/quant/codec_list.h"
grep -q 'codec(toy, NoOptions)' "$work/quant/codec_list.h"
cd "$work"
flags="-std=c++20 -O1 -ffp-contract=off -fno-math-errno -Wno-psabi -I$work -I$source"
avx2="-mavx2 -mfma -mf16c -mpopcnt"
declare -A isa_flags=([baseline]="-DLPSGD_CODEC_ROWS" [avx2]="$avx2" [avx512]="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl")
objects=()
# Only the table and the new codec are compiled; the library holds the rest.
for isa in baseline avx2 avx512; do
  $compiler $flags ${isa_flags[$isa]} -DLPSGD_ISA=$isa -c quant/codecs/toy.cc -o toy_$isa.o
  objects+=(toy_$isa.o)
done
if [[ $gpu != none ]]; then
  flags+=" -DLPSGD_HAVE_CUDA=1"
  $gpu_compiler -std=c++20 -O1 -I"$work" -I"$source" -DLPSGD_ISA=cuda -DLPSGD_CODEC_ON_CUDA -c quant/codecs/toy.cc -o toy_cuda.o
  objects+=(toy_cuda.o)
fi
$compiler $flags -c quant/codec_table.cc -o codec_table.o
$compiler $flags "$source/tests/quant/add_a_codec_test.cc" "${objects[@]}" codec_table.o "$@" -o test
if [[ $gpu == emulated ]]; then ./test gpu; else ./test; fi
