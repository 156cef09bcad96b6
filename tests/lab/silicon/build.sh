#!/bin/sh
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Compiles the simulated silicon into OUT: build.sh OUT. Needs gcc and nothing else; takes a few seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
src=$here/src
flags="-O2 -g0 -std=gnu11 -Wall -Wextra -Wno-format-truncation"
shared="-shared -fPIC -fvisibility=default"

mkdir -p "$out/gpusim/bin" "$out/gpusim/lib" "$out/gpusim/python" "$out/pkg"

# Every name of NVML's header answers NOT_SUPPORTED unless a source file here defines it: these are weak.
{
    sed -n 's/^\(nvml[A-Za-z0-9_]*\)$/__attribute__((weak)) int \1(void) { return 3; }/p' "$here/nvml-names.txt"
} > "$out/not-supported.c"
library="$src/board.c $src/session.c $src/device.c $src/events.c $src/mig.c"
# shellcheck disable=SC2086
gcc $flags $shared -Wl,-soname,libnvidia-ml.so.1 -Wl,-Bsymbolic -o "$out/pkg/libnvidia-ml.so" \
    $library "$out/not-supported.c" -lpthread -ldl
rm "$out/not-supported.c"

# It asks the board as NVML does, and shows none of that: a process may have both libraries. Kernels are run in step by
# all threads of a block, which the compiler does with vectors where it may.
# shellcheck disable=SC2086
gcc $flags -O3 -fno-math-errno -fno-trapping-math -shared -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o "$out/pkg/libcuda.so" \
    "$src/cuda.c" "$src/ptx.c" $library -lpthread -ldl -lm
# shellcheck disable=SC2086
gcc $flags $shared -Wl,-soname,libnvidia-ptxjitcompiler.so.1 -o "$out/pkg/libnvidia-ptxjitcompiler.so" \
    "$src/libnvidia-ptxjitcompiler.c"
# shellcheck disable=SC2086
gcc $flags $shared -o "$out/gpusim/lib/libgpusim-uname.so" "$src/uname.c" -ldl

for program in nvidia-smi nvidia-modprobe nvidia-persistenced nv-fabricmanager nvidia-imex nvidia-imex-ctl \
        nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-gridd; do
    # shellcheck disable=SC2086
    gcc $flags -o "$out/pkg/$program" "$src/$program.c" "$src/board.c" -lpthread -ldl
done

cp -r "$here/python/gpusim" "$out/gpusim/python/"
rm -rf "$out/gpusim/python/gpusim/__pycache__"
for program in gpusim-boot modprobe rmmod insmod; do
    install -m 0755 "$here/programs/$program" "$out/gpusim/bin/$program"
done
