# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Programs for a GPU, in PTX, and what they compute on one that is well. Pure.

They are of PTX 6.0 for sm_70, which every driver since CUDA 9.0 compiles for every GPU from Volta on: nothing here is
for one architecture only, as what is marked so does not run on the next (PTX ISA, .target). Each ends by itself after
the rounds that it was asked for. All threads of a block take the same way, and no result depends on the order in which
multiprocessors work: so each of them gives the same answer, and Python knows which.

prove:    every block the same words: integers, FP32 and FP64 (numbers that both hold exactly), shared memory; and the
          multiprocessor that it ran on.
multiply: every warp the same product of two matrices, by the tensor cores.
fill:     words of memory, each of which says its own place, with the bits of a mask turned over; compare counts those
          that do not, and tells the place of one.
copy:     memory from one place to another.
"""
from __future__ import annotations

import struct
from typing import List

THREADS = 128
WARPS = THREADS // 32
# Bytes that a block of `prove`, and one of `multiply`, writes
WORDS_SIZE = THREADS * 4
PRODUCT_SIZE = 16 * 16 * 4
# Bytes of one matrix of `multiply`, in FP16
FACTOR_SIZE = 16 * 16 * 2
NAMES = ("prove", "multiply", "fill", "compare", "copy")

SOURCE = """
.version 6.0
.target sm_70
.address_size 64

.visible .entry prove(
    .param .u64 results,
    .param .u64 multiprocessors,
    .param .u32 rounds
)
.reqntid 128, 1, 1
{
    .shared .align 4 .b8 exchange[512];
    .reg .pred %p<3>;
    .reg .b32 %r<20>;
    .reg .f32 %f<5>;
    .reg .f64 %d<5>;
    .reg .b64 %x<7>;

    ld.param.u64 %x1, [results];
    ld.param.u64 %x2, [multiprocessors];
    ld.param.u32 %r1, [rounds];
    cvta.to.global.u64 %x1, %x1;
    cvta.to.global.u64 %x2, %x2;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, exchange;
    shl.b32 %r5, %r2, 2;
    add.u32 %r5, %r4, %r5;
    add.u32 %r6, %r2, 1;
    and.b32 %r6, %r6, 127;
    shl.b32 %r6, %r6, 2;
    add.u32 %r6, %r4, %r6;
    mad.lo.u32 %r7, %r2, 2654435761, 1;
    mov.u32 %r8, 0;
again:
    mad.lo.u32 %r7, %r7, 1664525, 1013904223;
    shr.u32 %r9, %r7, 21;
    shr.u32 %r10, %r7, 10;
    and.b32 %r10, %r10, 2047;
    and.b32 %r11, %r7, 1048575;
    cvt.rn.f32.u32 %f1, %r9;
    cvt.rn.f32.u32 %f2, %r10;
    cvt.rn.f32.u32 %f3, %r11;
    fma.rn.f32 %f4, %f1, %f2, %f3;
    cvt.rzi.u32.f32 %r12, %f4;
    shr.u32 %r13, %r7, 6;
    mad.lo.u32 %r14, %r7, 22695477, %r12;
    shr.u32 %r14, %r14, 6;
    cvt.rn.f64.u32 %d1, %r13;
    cvt.rn.f64.u32 %d2, %r14;
    cvt.rn.f64.u32 %d3, %r7;
    fma.rn.f64 %d4, %d1, %d2, %d3;
    cvt.rzi.u64.f64 %x3, %d4;
    shr.u64 %x4, %x3, 32;
    cvt.u32.u64 %r15, %x3;
    cvt.u32.u64 %r16, %x4;
    xor.b32 %r7, %r7, %r12;
    xor.b32 %r7, %r7, %r15;
    xor.b32 %r7, %r7, %r16;
    st.shared.u32 [%r5], %r7;
    bar.sync 0;
    ld.shared.u32 %r17, [%r6];
    bar.sync 0;
    add.u32 %r7, %r7, %r17;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, %r1;
    @%p1 bra again;

    mad.lo.u32 %r18, %r3, 128, %r2;
    mul.wide.u32 %x5, %r18, 4;
    add.u64 %x5, %x1, %x5;
    st.global.u32 [%x5], %r7;
    mul.wide.u32 %x6, %r3, 4;
    add.u64 %x6, %x2, %x6;
    mov.u32 %r19, %smid;
    setp.eq.u32 %p2, %r2, 0;
    @%p2 st.global.u32 [%x6], %r19;
    ret;
}

.visible .entry multiply(
    .param .u64 products,
    .param .u64 factors,
    .param .u32 rounds
)
.reqntid 128, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<7>;
    .reg .b32 %a<8>;
    .reg .b32 %b<8>;
    .reg .f32 %c<8>;
    .reg .b64 %x<5>;

    ld.param.u64 %x1, [products];
    ld.param.u64 %x2, [factors];
    ld.param.u32 %r1, [rounds];
    cvta.to.global.u64 %x1, %x1;
    cvta.to.global.u64 %x2, %x2;
    add.u64 %x3, %x2, 512;
    wmma.load.a.sync.row.m16n16k16.global.f16 {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, [%x2];
    wmma.load.b.sync.col.m16n16k16.global.f16 {%b0, %b1, %b2, %b3, %b4, %b5, %b6, %b7}, [%x3];
    mov.f32 %c0, 0f00000000;
    mov.f32 %c1, 0f00000000;
    mov.f32 %c2, 0f00000000;
    mov.f32 %c3, 0f00000000;
    mov.f32 %c4, 0f00000000;
    mov.f32 %c5, 0f00000000;
    mov.f32 %c6, 0f00000000;
    mov.f32 %c7, 0f00000000;
    mov.u32 %r2, 0;
again:
    wmma.mma.sync.row.col.m16n16k16.f32.f32
        {%c0, %c1, %c2, %c3, %c4, %c5, %c6, %c7},
        {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7},
        {%b0, %b1, %b2, %b3, %b4, %b5, %b6, %b7},
        {%c0, %c1, %c2, %c3, %c4, %c5, %c6, %c7};
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra again;

    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %tid.x;
    shr.u32 %r5, %r4, 5;
    mad.lo.u32 %r6, %r3, 4, %r5;
    mul.wide.u32 %x4, %r6, 1024;
    add.u64 %x4, %x1, %x4;
    wmma.store.d.sync.row.m16n16k16.global.f32 [%x4], {%c0, %c1, %c2, %c3, %c4, %c5, %c6, %c7};
    ret;
}

.visible .entry fill(
    .param .u64 memory,
    .param .u64 words,
    .param .u32 mask
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %x<8>;

    ld.param.u64 %x1, [memory];
    ld.param.u64 %x2, [words];
    ld.param.u32 %r1, [mask];
    cvta.to.global.u64 %x1, %x1;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %nctaid.x;
    mul.wide.u32 %x3, %r3, %r4;
    cvt.u64.u32 %x4, %r2;
    add.u64 %x3, %x3, %x4;
    mul.wide.u32 %x5, %r5, %r4;
again:
    cvt.u32.u64 %r6, %x3;
    shr.u64 %x6, %x3, 32;
    cvt.u32.u64 %r7, %x6;
    mul.lo.u32 %r8, %r6, 2654435761;
    xor.b32 %r8, %r8, %r7;
    xor.b32 %r8, %r8, %r1;
    shl.b64 %x7, %x3, 2;
    add.u64 %x7, %x1, %x7;
    st.global.u32 [%x7], %r8;
    add.u64 %x3, %x3, %x5;
    setp.lt.u64 %p1, %x3, %x2;
    @%p1 bra again;
    ret;
}

.visible .entry compare(
    .param .u64 memory,
    .param .u64 words,
    .param .u32 mask,
    .param .u64 found
)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %x<9>;

    ld.param.u64 %x1, [memory];
    ld.param.u64 %x2, [words];
    ld.param.u32 %r1, [mask];
    ld.param.u64 %x8, [found];
    cvta.to.global.u64 %x1, %x1;
    cvta.to.global.u64 %x8, %x8;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %nctaid.x;
    mul.wide.u32 %x3, %r3, %r4;
    cvt.u64.u32 %x4, %r2;
    add.u64 %x3, %x3, %x4;
    mul.wide.u32 %x5, %r5, %r4;
again:
    cvt.u32.u64 %r6, %x3;
    shr.u64 %x6, %x3, 32;
    cvt.u32.u64 %r7, %x6;
    mul.lo.u32 %r8, %r6, 2654435761;
    xor.b32 %r8, %r8, %r7;
    xor.b32 %r8, %r8, %r1;
    shl.b64 %x7, %x3, 2;
    add.u64 %x7, %x1, %x7;
    ld.global.u32 %r9, [%x7];
    setp.ne.u32 %p2, %r8, %r9;
    @%p2 atom.global.add.u32 %r10, [%x8], 1;
    @%p2 st.global.u64 [%x8+8], %x3;
    add.u64 %x3, %x3, %x5;
    setp.lt.u64 %p1, %x3, %x2;
    @%p1 bra again;
    ret;
}

.visible .entry copy(
    .param .u64 to,
    .param .u64 from,
    .param .u64 vectors
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %x<10>;

    ld.param.u64 %x1, [to];
    ld.param.u64 %x2, [from];
    ld.param.u64 %x3, [vectors];
    cvta.to.global.u64 %x1, %x1;
    cvta.to.global.u64 %x2, %x2;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %x4, %r2, %r3;
    cvt.u64.u32 %x5, %r1;
    add.u64 %x4, %x4, %x5;
    mul.wide.u32 %x6, %r4, %r3;
again:
    shl.b64 %x7, %x4, 4;
    add.u64 %x8, %x2, %x7;
    add.u64 %x9, %x1, %x7;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%x8];
    st.global.v4.u32 [%x9], {%r5, %r6, %r7, %r8};
    add.u64 %x4, %x4, %x6;
    setp.lt.u64 %p1, %x4, %x3;
    @%p1 bra again;
    ret;
}
"""

_LOW = 0xFFFFFFFF


def expected_words(rounds: int) -> bytes:
    """What each block of `prove` writes after so many rounds."""
    words = [thread * 2654435761 + 1 & _LOW for thread in range(THREADS)]
    for _round in range(rounds):
        words = [_worked(word) for word in words]
        words = [word + words[(thread + 1) % THREADS] & _LOW for thread, word in enumerate(words)]
    return struct.pack("<%dI" % THREADS, *words)


def _worked(word: int) -> int:
    word = word * 1664525 + 1013904223 & _LOW
    single = (word >> 21) * (word >> 10 & 2047) + (word & 1048575)
    double = (word >> 6) * ((word * 22695477 + single & _LOW) >> 6) + word
    return word ^ single ^ double & _LOW ^ double >> 32


def factors() -> bytes:
    """The two matrices of `multiply`: the first by rows, the second by columns."""
    return struct.pack("<256e", *sum(_left(), [])) + struct.pack("<256e", *sum(_right(), []))


def expected_product(rounds: int) -> bytes:
    """What each warp of `multiply` writes: the product, added up so many times. FP32 holds it exactly to 2**24."""
    left, right = _left(), _right()
    return struct.pack("<256f", *(
        rounds * sum(a * b for a, b in zip(row, column)) for row in left for column in right))


def _left() -> List[List[int]]:
    return [[(row * 3 + column * 5) % 8 for column in range(16)] for row in range(16)]


def _right() -> List[List[int]]:
    """By columns."""
    return [[(row * 7 + column * 2 + 1) % 8 for row in range(16)] for column in range(16)]
