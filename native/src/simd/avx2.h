// The sixteen lanes as two AVX2 registers (AVX2, FMA, F16C). See simd.h.
#pragma once

#include <immintrin.h>

#include "simd/simd.h"

namespace fewbit {

struct Avx2 {
  static constexpr int kRegisters = 16;
  struct F32 {
    __m256 lo, hi;
  };
  struct I32 {
    __m256i lo, hi;
  };
  struct U8 {
    __m256i lo, hi;
  };
  using Mask = F32;  // all ones where true

  FEWBIT_INLINE F32 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  FEWBIT_INLINE I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  FEWBIT_INLINE F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  FEWBIT_INLINE I32 set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  FEWBIT_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  FEWBIT_INLINE I32 load(const int32_t* p) { return {load_256(p), load_256(p + 8)}; }
  FEWBIT_INLINE void store(float* p, F32 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  FEWBIT_INLINE void store(int32_t* p, I32 a) {
    store_256(p, a.lo);
    store_256(p + 8, a.hi);
  }
  FEWBIT_INLINE F32 load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p + 8, first(n - 8))};
  }
  FEWBIT_INLINE void store_n(float* p, F32 a, int n) {
    _mm256_maskstore_ps(p, first(n), a.lo);
    _mm256_maskstore_ps(p + 8, first(n - 8), a.hi);
  }

  FEWBIT_INLINE F32 add(F32 a, F32 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE F32 sub(F32 a, F32 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE F32 mul(F32 a, F32 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE F32 div(F32 a, F32 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
  FEWBIT_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  FEWBIT_INLINE F32 min(F32 a, F32 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE F32 max(F32 a, F32 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE F32 neg(F32 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
  }
  FEWBIT_INLINE F32 abs(F32 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
  }

  FEWBIT_INLINE Mask less(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
  }
  FEWBIT_INLINE Mask less_equal(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
  }
  FEWBIT_INLINE Mask equal(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
  }
  FEWBIT_INLINE Mask less_i32(I32 a, I32 b) {
    return from_bits({_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)});
  }
  FEWBIT_INLINE Mask equal_i32(I32 a, I32 b) {
    return from_bits({_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)});
  }
  FEWBIT_INLINE Mask both(Mask a, Mask b) {
    return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE Mask either(Mask a, Mask b) {
    return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
  }
  FEWBIT_INLINE bool any(Mask m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }
  FEWBIT_INLINE F32 select(Mask m, F32 a, F32 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
  }
  FEWBIT_INLINE I32 select(Mask m, I32 a, I32 b) {
    return bits(select(m, from_bits(a), from_bits(b)));
  }

  FEWBIT_INLINE I32 round(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
  FEWBIT_INLINE F32 convert(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  FEWBIT_INLINE I32 bits(F32 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  FEWBIT_INLINE F32 from_bits(I32 a) {
    return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
  }
  FEWBIT_INLINE I32 add(I32 a, I32 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  FEWBIT_INLINE I32 sub(I32 a, I32 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }
  FEWBIT_INLINE I32 mul(I32 a, I32 b) {
    return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
  }
  FEWBIT_INLINE I32 max(I32 a, I32 b) {
    return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
  }
  FEWBIT_INLINE I32 madd16(I32 a, I32 b) {
    return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
  }
  FEWBIT_INLINE I32 dot2(I32 acc, I32 a, I32 b) { return add(acc, madd16(a, b)); }
  template <int N>
  FEWBIT_INLINE I32 shift_left(I32 a) {
    return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
  }
  template <int N>
  FEWBIT_INLINE I32 shift_right(I32 a) {
    return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
  }
  FEWBIT_INLINE I32 bit_and(I32 a, I32 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  }
  FEWBIT_INLINE I32 bit_or(I32 a, I32 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }

  FEWBIT_INLINE F32 load_f16(const void* p) {
    const auto* h = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
  }
  FEWBIT_INLINE F32 load_bf16(const void* p) {
    const auto* h = static_cast<const __m128i*>(p);
    const I32 words = {_mm256_cvtepu16_epi32(_mm_loadu_si128(h)),
                       _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1))};
    return from_bits(shift_left<16>(words));
  }
  FEWBIT_INLINE void store_f16(void* p, F32 a) {
    auto* h = static_cast<__m128i*>(p);
    _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  FEWBIT_INLINE void store_low16(void* p, I32 a) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    const __m256i words =
        _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
    // Within each 128 bits: a half of a.lo, of a.hi.
    store_256(p, _mm256_permute4x64_epi64(words, 0xd8));
  }
  FEWBIT_INLINE I32 load_u8_i32(const void* p) {
    const __m128i b = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
  }
  FEWBIT_INLINE I32 load_i8_i32(const void* p) {
    const __m128i b = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
  }
  FEWBIT_INLINE I32 load_i8_i16(const void* p) {
    const auto* b = static_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(b)), _mm256_cvtepi8_epi16(_mm_loadu_si128(b + 1))};
  }
  FEWBIT_INLINE U8 pack_i8(I32 a, I32 b, I32 c, I32 d) { return {pack_32(a, b), pack_32(c, d)}; }
  FEWBIT_INLINE I32 add_quads(I32 a) { return {add_quads_256(a.lo), add_quads_256(a.hi)}; }

  FEWBIT_INLINE U8 load_u8(const void* p) {
    return {load_256(p), load_256(static_cast<const uint8_t*>(p) + 32)};
  }
  FEWBIT_INLINE void store_u8(void* p, U8 a) {
    store_256(p, a.lo);
    store_256(static_cast<uint8_t*>(p) + 32, a.hi);
  }
  FEWBIT_INLINE U8 set1_u8(uint8_t x) {
    const __m256i v = _mm256_set1_epi8(static_cast<char>(x));
    return {v, v};
  }
  FEWBIT_INLINE U8 and_u8(U8 a, U8 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  }
  FEWBIT_INLINE U8 or_u8(U8 a, U8 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  FEWBIT_INLINE U8 add_u8(U8 a, U8 b) {
    return {_mm256_add_epi8(a.lo, b.lo), _mm256_add_epi8(a.hi, b.hi)};
  }
  FEWBIT_INLINE U8 sub_u8(U8 a, U8 b) {
    return {_mm256_sub_epi8(a.lo, b.lo), _mm256_sub_epi8(a.hi, b.hi)};
  }
  FEWBIT_INLINE U8 and_or(U8 a, U8 m, U8 b) { return or_u8(and_u8(a, m), b); }
  template <int N>
  FEWBIT_INLINE U8 srl(U8 a) {
    return {_mm256_srli_epi16(a.lo, N), _mm256_srli_epi16(a.hi, N)};
  }
  template <int N>
  FEWBIT_INLINE U8 sll(U8 a) {
    return {_mm256_slli_epi16(a.lo, N), _mm256_slli_epi16(a.hi, N)};
  }
  FEWBIT_INLINE U8 broadcast4(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    const __m256i v = _mm256_set1_epi32(word);
    return {v, v};
  }
  FEWBIT_INLINE U8 repeat16(const void* p) {
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return {v, v};
  }
  FEWBIT_INLINE U8 lookup16(U8 table, U8 i) {
    return {_mm256_shuffle_epi8(table.lo, i.lo), _mm256_shuffle_epi8(table.hi, i.hi)};
  }
  // maddubs would saturate at 2 x 255 x 127, so even and odd bytes are widened to 16 bits.
  FEWBIT_INLINE I32 dot4(I32 acc, U8 u, U8 s) {
    return {add_products(acc.lo, u.lo, s.lo), add_products(acc.hi, u.hi, s.hi)};
  }
  // 2 x 127 x 128 fits 16 bits: maddubs cannot saturate.
  FEWBIT_INLINE I32 dot4_u7(I32 acc, U8 u, U8 s) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i lo = _mm256_madd_epi16(_mm256_maddubs_epi16(u.lo, s.lo), ones);
    const __m256i hi = _mm256_madd_epi16(_mm256_maddubs_epi16(u.hi, s.hi), ones);
    return {_mm256_add_epi32(acc.lo, lo), _mm256_add_epi32(acc.hi, hi)};
  }

  FEWBIT_INLINE float reduce_add(F32 a) {
    const __m256 b = _mm256_add_ps(a.lo, a.hi);
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  FEWBIT_INLINE float reduce_max(F32 a) {
    const __m256 b = _mm256_max_ps(a.lo, a.hi);
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
  }
  FEWBIT_INLINE int32_t reduce_add(I32 a) {
    const __m256i b = _mm256_add_epi32(a.lo, a.hi);
    const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xb1)));
  }
  FEWBIT_INLINE void reduce_max(I32 a, I32 b, int32_t& max_a, int32_t& max_b) {
    max_a = reduce_max_256(_mm256_max_epi32(a.lo, a.hi));
    max_b = reduce_max_256(_mm256_max_epi32(b.lo, b.hi));
  }
  FEWBIT_INLINE void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  FEWBIT_INLINE void prefetch_stream(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }

 private:
  FEWBIT_INLINE __m256i pack_32(I32 a, I32 b) {
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
    // Within each 128 bits: a quarter of a.lo, of a.hi, of b.lo, of b.hi.
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  FEWBIT_INLINE __m256i add_quads_256(__m256i a) {
    const __m256i b = _mm256_add_epi32(a, _mm256_shuffle_epi32(a, 0x4e));
    return _mm256_add_epi32(b, _mm256_shuffle_epi32(b, 0xb1));
  }
  FEWBIT_INLINE int32_t reduce_max_256(__m256i b) {
    const __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    const __m128i d = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(d, _mm_shuffle_epi32(d, 0xb1)));
  }
  FEWBIT_INLINE __m256i load_256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  FEWBIT_INLINE void store_256(void* p, __m256i a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), a);
  }
  FEWBIT_INLINE __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  FEWBIT_INLINE __m256i add_products(__m256i acc, __m256i u, __m256i s) {
    const __m256i u_even = _mm256_and_si256(u, _mm256_set1_epi16(0xff));
    const __m256i s_even = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8);
    const __m256i even = _mm256_madd_epi16(u_even, s_even);
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
  }
};

}  // namespace fewbit
