// Keys and values as integers in runs of 32 elements: rounding, writing and reading them. `Attend`
// in ops.h has the layout, src/fewbit/program.py the rounding.
#pragma once

#include "ops/ops.h"
#include "ops/stored.h"

namespace fewbit {

// A run of 32 elements rounded: codes as int32, and the scale as fp16.
struct RoundedRun {
  alignas(64) int32_t codes[kRun];
  uint16_t scale;
};

// Zero, or a NaN where an element is none or infinite: added to the scale, so that a value that is
// out of range is seen in what is read.
template <class S>
FEWBIT_INLINE float unsound(typename S::F32 a, typename S::F32 b) {
  return S::reduce_add(S::add(S::sub(a, a), S::sub(b, b)));
}

// clip(round_half_even(x / scale), low, high) of 32 elements; zeros where the scale is zero.
template <class S>
FEWBIT_INLINE void round_run(typename S::F32 a, typename S::F32 b, float scale, float low,
                             float high, int32_t* codes) {
  const auto code = [&](typename S::F32 x) {
    if (scale == 0.0f) return S::zero_i32();
    const typename S::F32 quotient = S::div(x, S::set1(scale));
    return S::round(S::max(S::min(quotient, S::set1(high)), S::set1(low)));
  };
  S::store(codes, code(a));
  S::store(codes + kLanes, code(b));
}

template <class S>
struct StoredInt8 {
  using Element = uint8_t;
  static constexpr bool kFromMemory = true;
  static constexpr bool kInteger = true;
  static constexpr float kLow = -127.0f, kHigh = 127.0f;
  static constexpr int64_t kPairs = 2 * kLanes;  // bytes of a pair of elements of 16 keys
  static constexpr int64_t kValues = kRun;       // bytes of a value's run
  static constexpr int32_t kOffset = 0;          // of a code in the store

  FEWBIT_INLINE float wanted_scale(typename S::F32 a, typename S::F32 b) {
    return S::reduce_max(S::max(S::abs(a), S::abs(b))) / 127.0f;
  }
  FEWBIT_INLINE void store_pair(uint8_t* pairs, int64_t key, int32_t first, int32_t second) {
    pairs[2 * key] = static_cast<uint8_t>(first);
    pairs[2 * key + 1] = static_cast<uint8_t>(second);
  }
  FEWBIT_INLINE void store_values(uint8_t* run, const int32_t* codes) {
    for (int64_t i = 0; i < kRun; ++i) run[i] = static_cast<uint8_t>(codes[i]);
  }
  // A pair of elements of 16 keys as 16-bit halves, plus kOffset.
  FEWBIT_INLINE typename S::I32 load_pairs(const uint8_t* pairs) { return S::load_i8_i16(pairs); }
  // The two tiles of a value's run, times its scale: exact.
  FEWBIT_INLINE void load_values(const uint8_t* run, float scale, typename S::F32& low,
                                 typename S::F32& high) {
    const typename S::F32 factor = S::set1(scale);
    low = S::mul(S::convert(S::load_i8_i32(run)), factor);
    high = S::mul(S::convert(S::load_i8_i32(run + kLanes)), factor);
  }
};

template <class S>
struct StoredInt4 {
  using Element = uint8_t;
  static constexpr bool kFromMemory = true;
  static constexpr bool kInteger = true;
  static constexpr float kLow = -8.0f, kHigh = 7.0f;
  static constexpr int64_t kPairs = kLanes;
  static constexpr int64_t kValues = kRun / 2;
  static constexpr int32_t kOffset = 8;

  FEWBIT_INLINE float wanted_scale(typename S::F32 a, typename S::F32 b) {
    const float largest = S::reduce_max(S::max(a, b));
    const float smallest = -S::reduce_max(S::max(S::neg(a), S::neg(b)));
    return (largest >= -smallest ? largest : smallest) / -8.0f;
  }
  FEWBIT_INLINE void store_pair(uint8_t* pairs, int64_t key, int32_t first, int32_t second) {
    pairs[key] = static_cast<uint8_t>((first + kOffset) | (second + kOffset) << 4);
  }
  FEWBIT_INLINE void store_values(uint8_t* run, const int32_t* codes) {
    for (int64_t i = 0; i < kLanes; ++i) store_pair(run, i, codes[i], codes[i + kLanes]);
  }
  FEWBIT_INLINE typename S::I32 load_pairs(const uint8_t* pairs) {
    const typename S::I32 bytes = S::load_u8_i32(pairs);
    const typename S::I32 apart = S::bit_or(bytes, S::template shift_left<12>(bytes));
    return S::bit_and(apart, S::set1(0x000f000f));
  }
  // (c + 8) scale - 8 scale, exact as c scale is.
  FEWBIT_INLINE void load_values(const uint8_t* run, float scale, typename S::F32& low,
                                 typename S::F32& high) {
    const typename S::F32 factor = S::set1(scale);
    const typename S::F32 offset = S::mul(factor, S::set1(-8.0f));
    const typename S::I32 bytes = S::load_u8_i32(run);
    low = S::fma(S::convert(S::bit_and(bytes, S::set1(15))), factor, offset);
    high = S::fma(S::convert(S::template shift_right<4>(bytes)), factor, offset);
  }
};

// Bytes of one run of a tile of 16 keys, its scales included, and where those start.
template <class Stored>
inline constexpr int64_t kKeyRunCodes = kRun / 2 * Stored::kPairs;
template <class Stored>
inline constexpr int64_t kKeyRunBytes = kKeyRunCodes<Stored> + 2 * kLanes;

// Where a page's value scales start.
template <class Stored>
FEWBIT_INLINE int64_t value_scales_at(int64_t head_dim) {
  return kPage * (head_dim / kRun) * Stored::kValues;
}

template <class S, class Stored>
FEWBIT_INLINE void round_to_store(const float* x, RoundedRun& run) {
  constexpr float kLargestHalf = 65504.0f;
  const typename S::F32 a = S::load(x);
  const typename S::F32 b = S::load(x + kLanes);
  const float wanted = Stored::wanted_scale(a, b);
  const float above = wanted > -kLargestHalf ? wanted : -kLargestHalf;
  const float bounded = above < kLargestHalf ? above : kLargestHalf;
  alignas(64) uint16_t halves[kLanes];
  alignas(64) float scales[kLanes];
  S::store_f16(halves, S::set1(bounded + unsound<S>(a, b)));
  S::store(scales, S::load_f16(halves));
  round_run<S>(a, b, scales[0], Stored::kLow, Stored::kHigh, run.codes);
  run.scale = halves[0];
}

FEWBIT_INLINE void store_half(uint8_t* to, uint16_t half) { __builtin_memcpy(to, &half, 2); }

template <class S, class Stored>
void store_integer_key(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  const int64_t runs = head_dim / kRun;
  const int64_t key = slot % kLanes;
  uint8_t* at = page + slot / kLanes * runs * kKeyRunBytes<Stored>;
  for (int64_t r = 0; r < runs; ++r, at += kKeyRunBytes<Stored>) {
    RoundedRun run;
    round_to_store<S, Stored>(x + r * kRun, run);
    for (int64_t i = 0; i < kRun / 2; ++i) {
      Stored::store_pair(at + i * Stored::kPairs, key, run.codes[2 * i], run.codes[2 * i + 1]);
    }
    store_half(at + kKeyRunCodes<Stored> + 2 * key, run.scale);
  }
}

template <class S, class Stored>
void store_integer_value(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  const int64_t runs = head_dim / kRun;
  uint8_t* scales = page + value_scales_at<Stored>(head_dim) + 2 * slot * runs;
  for (int64_t r = 0; r < runs; ++r) {
    RoundedRun run;
    round_to_store<S, Stored>(x + r * kRun, run);
    Stored::store_values(page + (slot * runs + r) * Stored::kValues, run.codes);
    store_half(scales + 2 * r, run.scale);
  }
}

template <class S, class Stored>
void store_key(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  if constexpr (Stored::kInteger) {
    store_integer_key<S, Stored>(x, head_dim, slot, page);
  } else {
    store_float_key<S, Stored>(x, head_dim, slot, page);
  }
}

template <class S, class Stored>
void store_value(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  if constexpr (Stored::kInteger) {
    store_integer_value<S, Stored>(x, head_dim, slot, page);
  } else {
    store_float_value<S, Stored>(x, head_dim, slot, page);
  }
}

}  // namespace fewbit
