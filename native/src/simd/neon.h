// The sixteen lanes as four NEON registers (ARMv8.2 with its dot products). See simd.h.
#pragma once

#include <arm_neon.h>

#include "simd/simd.h"

namespace fewbit {

struct Neon {
  static constexpr int kRegisters = 8;  // 32 of 128 bits
  struct F32 {
    float32x4_t v[4];
  };
  struct I32 {
    int32x4_t v[4];
  };
  struct U8 {
    uint8x16_t v[4];
  };
  struct Mask {
    uint32x4_t v[4];  // all ones where true
  };

  FEWBIT_INLINE F32 zero_f32() { return set1(0.0f); }
  FEWBIT_INLINE I32 zero_i32() { return set1(0); }
  FEWBIT_INLINE F32 set1(float x) {
    return each<F32>([&](int) { return vdupq_n_f32(x); });
  }
  FEWBIT_INLINE I32 set1(int32_t x) {
    return each<I32>([&](int) { return vdupq_n_s32(x); });
  }
  FEWBIT_INLINE F32 load(const float* p) {
    return each<F32>([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  FEWBIT_INLINE I32 load(const int32_t* p) {
    return each<I32>([&](int i) { return vld1q_s32(p + 4 * i); });
  }
  FEWBIT_INLINE void store(float* p, F32 a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
  }
  FEWBIT_INLINE void store(int32_t* p, I32 a) {
    for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, a.v[i]);
  }
  FEWBIT_INLINE F32 load_n(const float* p, int n) {
    if (n >= kLanes) return load(p);
    float lanes[kLanes] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  FEWBIT_INLINE void store_n(float* p, F32 a, int n) {
    if (n >= kLanes) return store(p, a);
    float lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }

  FEWBIT_INLINE F32 add(F32 a, F32 b) {
    return each<F32>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE F32 sub(F32 a, F32 b) {
    return each<F32>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE F32 mul(F32 a, F32 b) {
    return each<F32>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE F32 div(F32 a, F32 b) {
    return each<F32>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE F32 sqrt(F32 a) {
    return each<F32>([&](int i) { return vsqrtq_f32(a.v[i]); });
  }
  FEWBIT_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return each<F32>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  // fmin and fmax have rules of their own for NaN and for zeros of both signs.
  FEWBIT_INLINE F32 min(F32 a, F32 b) { return select(less(a, b), a, b); }
  FEWBIT_INLINE F32 max(F32 a, F32 b) { return select(less(b, a), a, b); }
  FEWBIT_INLINE F32 neg(F32 a) {
    return each<F32>([&](int i) { return vnegq_f32(a.v[i]); });
  }
  FEWBIT_INLINE F32 abs(F32 a) {
    return each<F32>([&](int i) { return vabsq_f32(a.v[i]); });
  }

  FEWBIT_INLINE Mask less(F32 a, F32 b) {
    return each<Mask>([&](int i) { return vcltq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE Mask less_equal(F32 a, F32 b) {
    return each<Mask>([&](int i) { return vcleq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE Mask equal(F32 a, F32 b) {
    return each<Mask>([&](int i) { return vceqq_f32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE Mask less_i32(I32 a, I32 b) {
    return each<Mask>([&](int i) { return vcltq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE Mask equal_i32(I32 a, I32 b) {
    return each<Mask>([&](int i) { return vceqq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE Mask both(Mask a, Mask b) {
    return each<Mask>([&](int i) { return vandq_u32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE Mask either(Mask a, Mask b) {
    return each<Mask>([&](int i) { return vorrq_u32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE bool any(Mask m) {
    return vmaxvq_u32(vorrq_u32(vorrq_u32(m.v[0], m.v[1]), vorrq_u32(m.v[2], m.v[3]))) != 0;
  }
  FEWBIT_INLINE F32 select(Mask m, F32 a, F32 b) {
    return each<F32>([&](int i) { return vbslq_f32(m.v[i], a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE I32 select(Mask m, I32 a, I32 b) {
    return each<I32>([&](int i) { return vbslq_s32(m.v[i], a.v[i], b.v[i]); });
  }

  // The conversion saturates and makes 0 of a NaN; below -2^31 that is already INT32_MIN.
  FEWBIT_INLINE I32 round(F32 a) {
    return each<I32>([&](int i) {
      const uint32x4_t fits = vcltq_f32(a.v[i], vdupq_n_f32(0x1p31f));
      return vbslq_s32(fits, vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(INT32_MIN));
    });
  }
  FEWBIT_INLINE F32 convert(I32 a) {
    return each<F32>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
  }
  FEWBIT_INLINE I32 bits(F32 a) {
    return each<I32>([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
  }
  FEWBIT_INLINE F32 from_bits(I32 a) {
    return each<F32>([&](int i) { return vreinterpretq_f32_s32(a.v[i]); });
  }
  FEWBIT_INLINE I32 add(I32 a, I32 b) {
    return each<I32>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE I32 sub(I32 a, I32 b) {
    return each<I32>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE I32 mul(I32 a, I32 b) {
    return each<I32>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE I32 max(I32 a, I32 b) {
    return each<I32>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE I32 madd16(I32 a, I32 b) {
    return each<I32>([&](int i) {
      const int16x8_t x = vreinterpretq_s16_s32(a.v[i]);
      const int16x8_t y = vreinterpretq_s16_s32(b.v[i]);
      return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
    });
  }
  FEWBIT_INLINE I32 dot2(I32 acc, I32 a, I32 b) { return add(acc, madd16(a, b)); }
  template <int N>
  FEWBIT_INLINE I32 shift_left(I32 a) {
    return each<I32>([&](int i) { return vshlq_n_s32(a.v[i], N); });
  }
  template <int N>
  FEWBIT_INLINE I32 shift_right(I32 a) {
    if constexpr (N == 0) return a;
    return each<I32>([&](int i) { return vshrq_n_s32(a.v[i], N ? N : 1); });
  }
  FEWBIT_INLINE I32 bit_and(I32 a, I32 b) {
    return each<I32>([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE I32 bit_or(I32 a, I32 b) {
    return each<I32>([&](int i) { return vorrq_s32(a.v[i], b.v[i]); });
  }

  FEWBIT_INLINE F32 load_f16(const void* p) {
    return each<F32>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(halves(p, i))); });
  }
  FEWBIT_INLINE F32 load_bf16(const void* p) {
    return each<F32>([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(halves(p, i), 16)); });
  }
  FEWBIT_INLINE void store_f16(void* p, F32 a) {
    for (int i = 0; i < 4; ++i) {
      const uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]));
      __builtin_memcpy(static_cast<uint8_t*>(p) + 8 * i, &h, 8);
    }
  }
  FEWBIT_INLINE void store_low16(void* p, I32 a) {
    for (int i = 0; i < 4; ++i) {
      const int16x4_t h = vmovn_s32(a.v[i]);
      __builtin_memcpy(static_cast<uint8_t*>(p) + 8 * i, &h, 8);
    }
  }
  FEWBIT_INLINE I32 load_u8_i32(const void* p) {
    const uint8x16_t b = vld1q_u8(static_cast<const uint8_t*>(p));
    const uint16x8_t words[2] = {vmovl_u8(vget_low_u8(b)), vmovl_high_u8(b)};
    return each<I32>([&](int i) {
      const uint16x8_t w = words[i / 2];
      return vreinterpretq_s32_u32(i % 2 ? vmovl_high_u16(w) : vmovl_u16(vget_low_u16(w)));
    });
  }
  FEWBIT_INLINE I32 load_i8_i32(const void* p) {
    const int8x16_t b = vld1q_s8(static_cast<const int8_t*>(p));
    const int16x8_t words[2] = {vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b)};
    return each<I32>([&](int i) {
      const int16x8_t w = words[i / 2];
      return i % 2 ? vmovl_high_s16(w) : vmovl_s16(vget_low_s16(w));
    });
  }
  FEWBIT_INLINE I32 load_i8_i16(const void* p) {
    return each<I32>([&](int i) {
      return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(static_cast<const int8_t*>(p) + 8 * i)));
    });
  }
  FEWBIT_INLINE U8 pack_i8(I32 a, I32 b, I32 c, I32 d) {
    return {{low_bytes(a), low_bytes(b), low_bytes(c), low_bytes(d)}};
  }
  FEWBIT_INLINE I32 add_quads(I32 a) {
    return each<I32>([&](int i) { return vdupq_n_s32(vaddvq_s32(a.v[i])); });
  }

  FEWBIT_INLINE U8 load_u8(const void* p) {
    return each<U8>([&](int i) { return vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i); });
  }
  FEWBIT_INLINE void store_u8(void* p, U8 a) {
    for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, a.v[i]);
  }
  FEWBIT_INLINE U8 set1_u8(uint8_t x) {
    return each<U8>([&](int) { return vdupq_n_u8(x); });
  }
  FEWBIT_INLINE U8 and_u8(U8 a, U8 b) {
    return each<U8>([&](int i) { return vandq_u8(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE U8 or_u8(U8 a, U8 b) {
    return each<U8>([&](int i) { return vorrq_u8(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE U8 add_u8(U8 a, U8 b) {
    return each<U8>([&](int i) { return vaddq_u8(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE U8 sub_u8(U8 a, U8 b) {
    return each<U8>([&](int i) { return vsubq_u8(a.v[i], b.v[i]); });
  }
  FEWBIT_INLINE U8 and_or(U8 a, U8 m, U8 b) { return or_u8(and_u8(a, m), b); }
  template <int N>
  FEWBIT_INLINE U8 srl(U8 a) {
    if constexpr (N == 0) return a;
    return each<U8>([&](int i) {
      const uint16x8_t words = vreinterpretq_u16_u8(a.v[i]);
      return vreinterpretq_u8_u16(vshrq_n_u16(words, N ? N : 1));
    });
  }
  template <int N>
  FEWBIT_INLINE U8 sll(U8 a) {
    return each<U8>(
        [&](int i) { return vreinterpretq_u8_u16(vshlq_n_u16(vreinterpretq_u16_u8(a.v[i]), N)); });
  }
  FEWBIT_INLINE U8 broadcast4(const void* p) {
    uint32_t word;
    __builtin_memcpy(&word, p, 4);
    return each<U8>([&](int) { return vreinterpretq_u8_u32(vdupq_n_u32(word)); });
  }
  FEWBIT_INLINE U8 repeat16(const void* p) {
    return each<U8>([&](int) { return vld1q_u8(static_cast<const uint8_t*>(p)); });
  }
  FEWBIT_INLINE U8 lookup16(U8 table, U8 index) {
    return each<U8>([&](int i) { return vqtbl1q_u8(table.v[i], index.v[i]); });
  }
  // The machine multiplies signed by signed: u s = (u - 128) s + 128 s.
  FEWBIT_INLINE I32 dot4(I32 acc, U8 u, U8 s) {
    return each<I32>([&](int i) {
      const int8x16_t centred = vreinterpretq_s8_u8(veorq_u8(u.v[i], vdupq_n_u8(0x80)));
      const int8x16_t inputs = vreinterpretq_s8_u8(s.v[i]);
      const int32x4_t sum = vdotq_s32(vdupq_n_s32(0), inputs, vdupq_n_s8(1));
      return vdotq_s32(vaddq_s32(acc.v[i], vshlq_n_s32(sum, 7)), centred, inputs);
    });
  }
  FEWBIT_INLINE I32 dot4_u7(I32 acc, U8 u, U8 s) {
    return each<I32>([&](int i) {
      return vdotq_s32(acc.v[i], vreinterpretq_s8_u8(u.v[i]), vreinterpretq_s8_u8(s.v[i]));
    });
  }

  FEWBIT_INLINE float reduce_add(F32 a) {
    const float32x4_t b = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
  }
  FEWBIT_INLINE float reduce_max(F32 a) {
    float lanes[kLanes];
    store(lanes, a);
    for (int half = kLanes / 2; half; half /= 2) {
      for (int i = 0; i < half; ++i) {
        lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
      }
    }
    return lanes[0];
  }
  FEWBIT_INLINE int32_t reduce_add(I32 a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
  }
  FEWBIT_INLINE void reduce_max(I32 a, I32 b, int32_t& max_a, int32_t& max_b) {
    max_a = largest(a);
    max_b = largest(b);
  }
  FEWBIT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
  FEWBIT_INLINE void prefetch_stream(const void* p) { __builtin_prefetch(p, 0, 2); }

 private:
  template <class V, class Quarter>
  FEWBIT_INLINE V each(Quarter quarter) {
    return {{quarter(0), quarter(1), quarter(2), quarter(3)}};
  }
  FEWBIT_INLINE uint16x4_t halves(const void* p, int i) {
    uint16x4_t h;
    __builtin_memcpy(&h, static_cast<const uint8_t*>(p) + 8 * i, 8);
    return h;
  }
  FEWBIT_INLINE uint8x16_t low_bytes(I32 a) {
    const int16x8_t first = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    const int16x8_t second = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    return vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(first), vmovn_s16(second)));
  }
  FEWBIT_INLINE int32_t largest(I32 a) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
  }
};

}  // namespace fewbit
