// Sixteen virtual lanes, whatever the instruction set.
//
// A kernel is a template over S, one of the structs Avx512, Avx2, Neon and Portable (avx512.h,
// avx2.h, neon.h, portable.h). Each has the same static functions, and each function returns the
// same bits in all of them, so a kernel that is written once computes the same bits everywhere:
//
//   kRegisters           vector registers of the machine (0: lanes are memory)
//   F32, I32, U8, Mask   16 floats, 16 int32, 64 bytes (signed or not), 16 truth values
//
//   load, store          unaligned; load_n, store_n touch the first n lanes only (others read as 0)
//   zero_f32, zero_i32, set1(float), set1(int32_t)
//   add, sub, mul, div, sqrt, fma(a, b, c) = a b + c    each correctly rounded, once
//   min, max             a < b ? a : b, and a > b ? a : b: the second where one is a NaN
//   neg, abs             of the sign bit alone
//   less, less_equal, equal -> Mask (false with a NaN); less_i32, equal_i32
//   both(m, n), either(m, n), any(m), select(m, a, b) = m ? a : b
//   round(F32) -> I32    half to even; INT32_MIN where it does not fit
//   convert(I32) -> F32  rounded to nearest
//   bits(F32) -> I32, from_bits(I32) -> F32
//   add, sub, mul (I32, wrapping), max, reduce_add (I32), bit_and, bit_or
//   add_quads            in every lane the sum of the four lanes of its quarter (I32)
//   reduce_max(a, b, max_a, max_b) of I32, two at once
//   shift_left<N>, shift_right<N> (arithmetic)
//   madd16(a, b)         per lane the sum of the two products of signed 16-bit halves
//   dot2(acc, a, b)      acc + madd16(a, b), wrapping
//   load_f16, load_bf16  16 halves -> F32, exact (a signalling NaN becomes quiet)
//   store_f16            16 floats -> halves, to nearest even, subnormals and overflow included
//   store_low16          the lower 16 bits of each lane
//   load_u8_i32, load_i8_i32   16 bytes -> I32
//   load_i8_i16          32 signed bytes -> the signed 16-bit halves of 16 lanes, low half first
//   pack_i8(a, b, c, d)  64 values in -128..127 -> bytes, a's first
//   load_u8, store_u8, set1_u8, and_u8, or_u8, add_u8, sub_u8 (wrapping)
//   srl<N>, sll<N>       of 16-bit words: bits cross between bytes, the caller masks
//   and_or(a, m, b)      (a & m) | b, of bytes
//   broadcast4(p)        4 bytes, repeated in every 32-bit lane
//   repeat16(p)          16 bytes, repeated in every quarter
//   lookup16(t, i)       byte i of t's own quarter, for each index i < 16
//   dot4(acc, u, s)      acc + the 4 products of unsigned u and signed s in each lane, exact
//   dot4_u7(acc, u, s)   the same where every u is at most 127: cheaper on AVX2
//   dot4_at(acc, u, p)   dot4 with the 4 bytes at p in every lane; where one instruction does it
//   reduce_add           by the tree lane i + lane i+8, then i+4, i+2, i+1
//   reduce_max           of values without NaN
//   prefetch(p)          into the nearest cache; any address is allowed
//   prefetch_stream(p)   into the second cache: part of a long stream from memory
//
// One definition rule: a file compiled for an instruction set (by its suffix: _avx2, _avx512, _amx,
// _neon) includes that set's header only, and every function it can share with another file is a
// template over S or always inlined (FEWBIT_INLINE). Otherwise the linker could keep the AVX-512
// copy of an inline function for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#define FEWBIT_INLINE static inline __attribute__((always_inline))

namespace fewbit {

inline constexpr int kLanes = 16;

}  // namespace fewbit
