// The sixteen lanes as one AVX-512 register (F, BW, VL, DQ, VNNI). See simd.h.
#pragma once

#include <immintrin.h>

#include "simd/simd.h"

namespace fewbit {

struct Avx512 {
  static constexpr int kRegisters = 32;
  using F32 = __m512;
  using I32 = __m512i;
  using U8 = __m512i;
  using Mask = __mmask16;

  FEWBIT_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

  FEWBIT_INLINE F32 zero_f32() { return _mm512_setzero_ps(); }
  FEWBIT_INLINE I32 zero_i32() { return _mm512_setzero_si512(); }
  FEWBIT_INLINE F32 set1(float x) { return _mm512_set1_ps(x); }
  FEWBIT_INLINE I32 set1(int32_t x) { return _mm512_set1_epi32(x); }
  FEWBIT_INLINE F32 load(const float* p) { return _mm512_loadu_ps(p); }
  FEWBIT_INLINE I32 load(const int32_t* p) { return _mm512_loadu_si512(p); }
  FEWBIT_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a); }
  FEWBIT_INLINE void store(int32_t* p, I32 a) { _mm512_storeu_si512(p, a); }
  FEWBIT_INLINE F32 load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  FEWBIT_INLINE void store_n(float* p, F32 a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }

  FEWBIT_INLINE F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  FEWBIT_INLINE F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
  FEWBIT_INLINE F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  FEWBIT_INLINE F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
  FEWBIT_INLINE F32 sqrt(F32 a) { return _mm512_sqrt_ps(a); }
  FEWBIT_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
  FEWBIT_INLINE F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
  FEWBIT_INLINE F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
  FEWBIT_INLINE F32 neg(F32 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  FEWBIT_INLINE F32 abs(F32 a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }

  FEWBIT_INLINE Mask less(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  FEWBIT_INLINE Mask less_equal(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  FEWBIT_INLINE Mask equal(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  FEWBIT_INLINE Mask less_i32(I32 a, I32 b) { return _mm512_cmplt_epi32_mask(a, b); }
  FEWBIT_INLINE Mask equal_i32(I32 a, I32 b) { return _mm512_cmpeq_epi32_mask(a, b); }
  FEWBIT_INLINE Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }
  FEWBIT_INLINE Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  FEWBIT_INLINE bool any(Mask m) { return m != 0; }
  FEWBIT_INLINE F32 select(Mask m, F32 a, F32 b) { return _mm512_mask_blend_ps(m, b, a); }
  FEWBIT_INLINE I32 select(Mask m, I32 a, I32 b) { return _mm512_mask_blend_epi32(m, b, a); }

  FEWBIT_INLINE I32 round(F32 a) {
    return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  FEWBIT_INLINE F32 convert(I32 a) { return _mm512_cvtepi32_ps(a); }
  FEWBIT_INLINE I32 bits(F32 a) { return _mm512_castps_si512(a); }
  FEWBIT_INLINE F32 from_bits(I32 a) { return _mm512_castsi512_ps(a); }
  FEWBIT_INLINE I32 add(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
  FEWBIT_INLINE I32 sub(I32 a, I32 b) { return _mm512_sub_epi32(a, b); }
  FEWBIT_INLINE I32 mul(I32 a, I32 b) { return _mm512_mullo_epi32(a, b); }
  FEWBIT_INLINE I32 max(I32 a, I32 b) { return _mm512_max_epi32(a, b); }
  FEWBIT_INLINE I32 madd16(I32 a, I32 b) { return _mm512_madd_epi16(a, b); }
  FEWBIT_INLINE I32 dot2(I32 acc, I32 a, I32 b) {
    acc = _mm512_dpwssd_epi32(acc, a, b);
    // GCC 12 would keep a sum twice, as the intrinsic's 16 ints and as __m512i's 8 long ints, and
    // spill one of the two in every turn of a loop.
    __asm__("" : "+v"(acc));
    return acc;
  }
  template <int N>
  FEWBIT_INLINE I32 shift_left(I32 a) {
    return _mm512_slli_epi32(a, N);
  }
  template <int N>
  FEWBIT_INLINE I32 shift_right(I32 a) {
    return _mm512_srai_epi32(a, N);
  }
  FEWBIT_INLINE I32 bit_and(I32 a, I32 b) { return _mm512_and_si512(a, b); }
  FEWBIT_INLINE I32 bit_or(I32 a, I32 b) { return _mm512_or_si512(a, b); }

  FEWBIT_INLINE F32 load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  FEWBIT_INLINE F32 load_bf16(const void* p) {
    const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  FEWBIT_INLINE void store_f16(void* p, F32 a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  FEWBIT_INLINE void store_low16(void* p, I32 a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
  }
  FEWBIT_INLINE I32 load_u8_i32(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  FEWBIT_INLINE I32 load_i8_i32(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  FEWBIT_INLINE I32 load_i8_i16(const void* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  FEWBIT_INLINE U8 pack_i8(I32 a, I32 b, I32 c, I32 d) {
    // Both packs work within 128 bits: dword 4 i + j of the result is quarter i of vector j.
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
  }
  FEWBIT_INLINE I32 add_quads(I32 a) {
    const __m512i b = _mm512_add_epi32(a, _mm512_shuffle_epi32(a, _MM_PERM_BADC));
    return _mm512_add_epi32(b, _mm512_shuffle_epi32(b, _MM_PERM_CDAB));
  }

  FEWBIT_INLINE U8 load_u8(const void* p) { return _mm512_loadu_si512(p); }
  FEWBIT_INLINE void store_u8(void* p, U8 a) { _mm512_storeu_si512(p, a); }
  FEWBIT_INLINE U8 set1_u8(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  FEWBIT_INLINE U8 and_u8(U8 a, U8 b) { return _mm512_and_si512(a, b); }
  FEWBIT_INLINE U8 or_u8(U8 a, U8 b) { return _mm512_or_si512(a, b); }
  FEWBIT_INLINE U8 add_u8(U8 a, U8 b) { return _mm512_add_epi8(a, b); }
  FEWBIT_INLINE U8 sub_u8(U8 a, U8 b) { return _mm512_sub_epi8(a, b); }
  FEWBIT_INLINE U8 and_or(U8 a, U8 m, U8 b) { return _mm512_ternarylogic_epi32(a, m, b, 0xea); }
  template <int N>
  FEWBIT_INLINE U8 srl(U8 a) {
    return _mm512_srli_epi16(a, N);
  }
  template <int N>
  FEWBIT_INLINE U8 sll(U8 a) {
    return _mm512_slli_epi16(a, N);
  }
  FEWBIT_INLINE U8 broadcast4(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return _mm512_set1_epi32(word);
  }
  FEWBIT_INLINE U8 repeat16(const void* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  FEWBIT_INLINE U8 lookup16(U8 table, U8 i) { return _mm512_shuffle_epi8(table, i); }
  FEWBIT_INLINE I32 dot4(I32 acc, U8 u, U8 s) { return _mm512_dpbusd_epi32(acc, u, s); }
  // GCC 12 does not fold the broadcast of 4 inputs into the product by itself.
  FEWBIT_INLINE I32 dot4_at(I32 acc, U8 u, const int8_t* inputs) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(acc)
        : "v"(u), "m"(*reinterpret_cast<const int32_t(*)>(inputs)));
    return acc;
  }
  FEWBIT_INLINE I32 dot4_u7(I32 acc, U8 u, U8 s) { return dot4(acc, u, s); }

  FEWBIT_INLINE float reduce_add(F32 a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  FEWBIT_INLINE float reduce_max(F32 a) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  FEWBIT_INLINE int32_t reduce_add(I32 a) { return _mm512_reduce_add_epi32(a); }
  FEWBIT_INLINE void reduce_max(I32 a, I32 b, int32_t& max_a, int32_t& max_b) {
    const __m512i low = _mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1);
    const __m512i high = _mm512_shuffle_i64x2(a, b, 0xee);
    __m512i m = _mm512_max_epi32(low, high);
    m = _mm512_max_epi32(m, _mm512_shuffle_i64x2(m, m, 0xb1));
    m = _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
    m = _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB));
    max_a = _mm_cvtsi128_si32(_mm512_castsi512_si128(m));
    max_b = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(m, 2));
  }
  FEWBIT_INLINE void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  FEWBIT_INLINE void prefetch_stream(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};

}  // namespace fewbit
