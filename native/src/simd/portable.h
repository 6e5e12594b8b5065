// The sixteen lanes as plain arrays: the slow truth of the other two, and what runs elsewhere. See
// simd.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "simd/half.h"
#include "simd/simd.h"

namespace fewbit {

struct Portable {
  static constexpr int kRegisters = 0;
  struct F32 {
    float v[kLanes];
  };
  struct I32 {
    int32_t v[kLanes];
  };
  struct U8 {
    uint8_t v[4 * kLanes];
  };
  struct Mask {
    bool v[kLanes];
  };

  FEWBIT_INLINE F32 zero_f32() { return set1(0.0f); }
  FEWBIT_INLINE I32 zero_i32() { return set1(0); }
  FEWBIT_INLINE F32 set1(float x) {
    return each<F32>([&](int) { return x; });
  }
  FEWBIT_INLINE I32 set1(int32_t x) {
    return each<I32>([&](int) { return x; });
  }
  FEWBIT_INLINE F32 load(const float* p) {
    return each<F32>([&](int i) { return p[i]; });
  }
  FEWBIT_INLINE I32 load(const int32_t* p) {
    return each<I32>([&](int i) { return p[i]; });
  }
  FEWBIT_INLINE void store(float* p, const F32& a) { std::memcpy(p, a.v, sizeof(a.v)); }
  FEWBIT_INLINE void store(int32_t* p, const I32& a) { std::memcpy(p, a.v, sizeof(a.v)); }
  FEWBIT_INLINE F32 load_n(const float* p, int n) {
    return each<F32>([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  FEWBIT_INLINE void store_n(float* p, const F32& a, int n) {
    for (int i = 0; i < n && i < kLanes; ++i) p[i] = a.v[i];
  }

  FEWBIT_INLINE F32 add(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.v[i] + b.v[i]; });
  }
  FEWBIT_INLINE F32 sub(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.v[i] - b.v[i]; });
  }
  FEWBIT_INLINE F32 mul(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.v[i] * b.v[i]; });
  }
  FEWBIT_INLINE F32 div(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.v[i] / b.v[i]; });
  }
  FEWBIT_INLINE F32 sqrt(const F32& a) {
    return each<F32>([&](int i) { return std::sqrt(a.v[i]); });
  }
  FEWBIT_INLINE F32 fma(const F32& a, const F32& b, const F32& c) {
    return each<F32>([&](int i) { return fused(a.v[i], b.v[i], c.v[i]); });
  }
  FEWBIT_INLINE F32 min(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  FEWBIT_INLINE F32 max(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  FEWBIT_INLINE F32 neg(const F32& a) {
    return each<F32>([&](int i) { return word(a.v[i]) ^ 0x80000000u; });
  }
  FEWBIT_INLINE F32 abs(const F32& a) {
    return each<F32>([&](int i) { return word(a.v[i]) & 0x7fffffffu; });
  }

  FEWBIT_INLINE Mask less(const F32& a, const F32& b) {
    return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
  }
  FEWBIT_INLINE Mask less_equal(const F32& a, const F32& b) {
    return each<Mask>([&](int i) { return a.v[i] <= b.v[i]; });
  }
  FEWBIT_INLINE Mask equal(const F32& a, const F32& b) {
    return each<Mask>([&](int i) { return a.v[i] == b.v[i]; });
  }
  FEWBIT_INLINE Mask less_i32(const I32& a, const I32& b) {
    return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
  }
  FEWBIT_INLINE Mask equal_i32(const I32& a, const I32& b) {
    return each<Mask>([&](int i) { return a.v[i] == b.v[i]; });
  }
  FEWBIT_INLINE Mask both(const Mask& a, const Mask& b) {
    return each<Mask>([&](int i) { return a.v[i] && b.v[i]; });
  }
  FEWBIT_INLINE Mask either(const Mask& a, const Mask& b) {
    return each<Mask>([&](int i) { return a.v[i] || b.v[i]; });
  }
  FEWBIT_INLINE bool any(const Mask& m) {
    bool found = false;
    for (int i = 0; i < kLanes; ++i) found = found || m.v[i];
    return found;
  }
  FEWBIT_INLINE F32 select(const Mask& m, const F32& a, const F32& b) {
    return each<F32>([&](int i) { return m.v[i] ? word(a.v[i]) : word(b.v[i]); });
  }
  FEWBIT_INLINE I32 select(const Mask& m, const I32& a, const I32& b) {
    return each<I32>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
  }

  FEWBIT_INLINE I32 round(const F32& a) {
    return each<I32>([&](int i) { return round_half_even(a.v[i]); });
  }
  FEWBIT_INLINE F32 convert(const I32& a) {
    return each<F32>([&](int i) { return static_cast<float>(a.v[i]); });
  }
  FEWBIT_INLINE I32 bits(const F32& a) { return std::bit_cast<I32>(a); }
  FEWBIT_INLINE F32 from_bits(const I32& a) { return std::bit_cast<F32>(a); }
  FEWBIT_INLINE I32 add(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return word(a.v[i]) + word(b.v[i]); });
  }
  FEWBIT_INLINE I32 sub(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return word(a.v[i]) - word(b.v[i]); });
  }
  FEWBIT_INLINE I32 mul(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return word(a.v[i]) * word(b.v[i]); });
  }
  FEWBIT_INLINE I32 max(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  FEWBIT_INLINE I32 madd16(const I32& a, const I32& b) {
    return each<I32>([&](int i) {
      const int32_t low = int16_t(a.v[i]) * int16_t(b.v[i]);
      const int32_t high = (a.v[i] >> 16) * (b.v[i] >> 16);
      return word(low) + word(high);
    });
  }
  FEWBIT_INLINE I32 dot2(const I32& acc, const I32& a, const I32& b) {
    return add(acc, madd16(a, b));
  }
  template <int N>
  FEWBIT_INLINE I32 shift_left(const I32& a) {
    return each<I32>([&](int i) { return word(a.v[i]) << N; });
  }
  template <int N>
  FEWBIT_INLINE I32 shift_right(const I32& a) {
    return each<I32>([&](int i) { return a.v[i] >> N; });
  }
  FEWBIT_INLINE I32 bit_and(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return a.v[i] & b.v[i]; });
  }
  FEWBIT_INLINE I32 bit_or(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return a.v[i] | b.v[i]; });
  }

  FEWBIT_INLINE F32 load_f16(const void* p) {
    return each<F32>([&](int i) { return half_to_float(half_at(p, i)); });
  }
  FEWBIT_INLINE F32 load_bf16(const void* p) {
    return each<F32>([&](int i) { return static_cast<uint32_t>(half_at(p, i)) << 16; });
  }
  FEWBIT_INLINE void store_f16(void* p, const F32& a) {
    for (int i = 0; i < kLanes; ++i) {
      const uint16_t h = float_to_half(a.v[i]);
      std::memcpy(static_cast<uint8_t*>(p) + 2 * i, &h, 2);
    }
  }
  FEWBIT_INLINE void store_low16(void* p, const I32& a) {
    for (int i = 0; i < kLanes; ++i) {
      const auto h = static_cast<uint16_t>(a.v[i]);
      std::memcpy(static_cast<uint8_t*>(p) + 2 * i, &h, 2);
    }
  }
  FEWBIT_INLINE I32 load_u8_i32(const void* p) {
    return each<I32>([&](int i) { return static_cast<const uint8_t*>(p)[i]; });
  }
  FEWBIT_INLINE I32 load_i8_i32(const void* p) {
    return each<I32>([&](int i) { return static_cast<const int8_t*>(p)[i]; });
  }
  FEWBIT_INLINE I32 load_i8_i16(const void* p) {
    const auto* b = static_cast<const int8_t*>(p);
    return each<I32>([&](int i) {
      return static_cast<int32_t>(static_cast<uint32_t>(b[2 * i + 1]) << 16 |
                                  static_cast<uint16_t>(b[2 * i]));
    });
  }
  FEWBIT_INLINE U8 pack_i8(const I32& a, const I32& b, const I32& c, const I32& d) {
    const I32* parts[4] = {&a, &b, &c, &d};
    return each_byte([&](int i) { return parts[i / kLanes]->v[i % kLanes]; });
  }
  FEWBIT_INLINE I32 add_quads(const I32& a) {
    return each<I32>([&](int i) {
      const int32_t* quad = a.v + i / 4 * 4;
      return word(quad[0]) + word(quad[1]) + word(quad[2]) + word(quad[3]);
    });
  }

  FEWBIT_INLINE U8 load_u8(const void* p) {
    U8 r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
  }
  FEWBIT_INLINE void store_u8(void* p, const U8& a) { std::memcpy(p, a.v, sizeof(a.v)); }
  FEWBIT_INLINE U8 set1_u8(uint8_t x) {
    return each_byte([&](int) { return x; });
  }
  FEWBIT_INLINE U8 and_u8(const U8& a, const U8& b) {
    return each_byte([&](int i) { return a.v[i] & b.v[i]; });
  }
  FEWBIT_INLINE U8 or_u8(const U8& a, const U8& b) {
    return each_byte([&](int i) { return a.v[i] | b.v[i]; });
  }
  FEWBIT_INLINE U8 add_u8(const U8& a, const U8& b) {
    return each_byte([&](int i) { return a.v[i] + b.v[i]; });
  }
  FEWBIT_INLINE U8 sub_u8(const U8& a, const U8& b) {
    return each_byte([&](int i) { return a.v[i] - b.v[i]; });
  }
  FEWBIT_INLINE U8 and_or(const U8& a, const U8& m, const U8& b) { return or_u8(and_u8(a, m), b); }
  template <int N>
  FEWBIT_INLINE U8 srl(const U8& a) {
    return each_word(a, [](uint32_t w) { return w >> N; });
  }
  template <int N>
  FEWBIT_INLINE U8 sll(const U8& a) {
    return each_word(a, [](uint32_t w) { return w << N; });
  }
  FEWBIT_INLINE U8 broadcast4(const void* p) {
    return each_byte([&](int i) { return static_cast<const uint8_t*>(p)[i % 4]; });
  }
  FEWBIT_INLINE U8 repeat16(const void* p) {
    return each_byte([&](int i) { return static_cast<const uint8_t*>(p)[i % 16]; });
  }
  FEWBIT_INLINE U8 lookup16(const U8& table, const U8& index) {
    return each_byte([&](int i) { return table.v[i / 16 * 16 + index.v[i] % 16]; });
  }
  FEWBIT_INLINE I32 dot4(const I32& acc, const U8& u, const U8& s) {
    return each<I32>([&](int i) {
      int32_t sum = 0;
      for (int j = 4 * i; j < 4 * i + 4; ++j) sum += u.v[j] * static_cast<int8_t>(s.v[j]);
      return word(acc.v[i]) + word(sum);
    });
  }
  FEWBIT_INLINE I32 dot4_u7(const I32& acc, const U8& u, const U8& s) { return dot4(acc, u, s); }

  FEWBIT_INLINE float reduce_add(F32 a) {
    for (int half = kLanes / 2; half; half /= 2) {
      for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    }
    return a.v[0];
  }
  FEWBIT_INLINE float reduce_max(F32 a) {
    for (int half = kLanes / 2; half; half /= 2) {
      for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    }
    return a.v[0];
  }
  FEWBIT_INLINE int32_t reduce_add(const I32& a) {
    uint32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += word(a.v[i]);
    return static_cast<int32_t>(sum);
  }
  FEWBIT_INLINE void reduce_max(const I32& a, const I32& b, int32_t& max_a, int32_t& max_b) {
    max_a = a.v[0];
    max_b = b.v[0];
    for (int i = 1; i < kLanes; ++i) {
      max_a = a.v[i] > max_a ? a.v[i] : max_a;
      max_b = b.v[i] > max_b ? b.v[i] : max_b;
    }
  }
  FEWBIT_INLINE void prefetch(const void*) {}
  FEWBIT_INLINE void prefetch_stream(const void*) {}

 private:
  template <class V, class Lane>
  FEWBIT_INLINE V each(Lane lane) {
    V r;
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (std::is_same_v<V, F32> && std::is_same_v<decltype(lane(i)), uint32_t>) {
        r.v[i] = std::bit_cast<float>(lane(i));  // a lane given by its bits
      } else {
        r.v[i] = lane(i);
      }
    }
    return r;
  }
  template <class Byte>
  FEWBIT_INLINE U8 each_byte(Byte byte) {
    U8 r;
    for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = static_cast<uint8_t>(byte(i));
    return r;
  }
  template <class Word>
  FEWBIT_INLINE U8 each_word(const U8& a, Word word) {
    U8 r;
    for (int i = 0; i < 4 * kLanes; i += 2) {
      const uint32_t w = word(static_cast<uint32_t>(a.v[i] | (a.v[i + 1] << 8)));
      r.v[i] = static_cast<uint8_t>(w);
      r.v[i + 1] = static_cast<uint8_t>(w >> 8);
    }
    return r;
  }
  FEWBIT_INLINE uint32_t word(float x) { return std::bit_cast<uint32_t>(x); }
  FEWBIT_INLINE uint32_t word(int32_t x) { return static_cast<uint32_t>(x); }
  FEWBIT_INLINE uint16_t half_at(const void* p, int i) {
    uint16_t h;
    std::memcpy(&h, static_cast<const uint8_t*>(p) + 2 * i, 2);
    return h;
  }
  // The product of two floats is exact in double; its sum with c is rounded there to odd, so that
  // the second rounding, to float, is the only one that shows.
  FEWBIT_INLINE float fused(float a, float b, float c) {
    const double product = static_cast<double>(a) * b;
    const double sum = product + c;
    const double back = sum - product;
    const double error = (product - (sum - back)) + (c - back);
    uint64_t raw = std::bit_cast<uint64_t>(sum);
    // NaN and infinity give a NaN error, which is not "less" or "greater" than zero.
    if ((error > 0.0 || error < 0.0) && !(raw & 1)) {
      raw += ((error > 0.0) == (sum > 0.0)) ? 1 : -1;
    }
    return static_cast<float>(std::bit_cast<double>(raw));
  }
  FEWBIT_INLINE int32_t round_half_even(float x) {
    if (!(x >= -0x1p31f && x < 0x1p31f)) return INT32_MIN;
    if (x >= 0x1p23f || x <= -0x1p23f) return static_cast<int32_t>(x);
    const float shifted = (x < 0 ? -x : x) + 0x1p23f;  // the sum's last place is 1: it rounds
    const int32_t magnitude = std::bit_cast<int32_t>(shifted) - 0x4b000000;
    return x < 0 ? -magnitude : magnitude;
  }
};

}  // namespace fewbit
