// Numbers as the key-value store holds them, and writing a row's key and value.
#pragma once

#include <cstdint>

#include "ops/elementwise.h"

namespace fewbit {

// How the store holds a number. What comes from memory is asked for ahead.
template <class S>
struct StoredF16 {
  using Element = uint16_t;
  static constexpr bool kFromMemory = true;
  static constexpr bool kInteger = false;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load_f16(p); }
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) { S::store_f16(p, x); }
};

template <class S>
struct StoredBf16 {
  using Element = uint16_t;
  static constexpr bool kFromMemory = true;
  static constexpr bool kInteger = false;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load_bf16(p); }
  // To nearest, ties to even; a NaN becomes quiet.
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) {
    using I32 = typename S::I32;
    const I32 bits = S::bits(x);
    const I32 odd = S::bit_and(S::template shift_right<16>(bits), S::set1(1));
    const I32 rounded = S::add(S::add(bits, S::set1(0x7fff)), odd);
    alignas(64) int32_t lanes[kLanes];
    S::store(lanes, S::select(S::equal(x, x), rounded, S::bit_or(bits, S::set1(0x400000))));
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<Element>(lanes[i] >> 16);
  }
};

template <class S>
struct StoredF32 {
  using Element = float;
  static constexpr bool kFromMemory = true;
  static constexpr bool kInteger = false;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load(p); }
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) { S::store(p, x); }
};

FEWBIT_INLINE int64_t padded(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

// A page that was converted to float32 and lies in the nearest cache.
template <class S>
struct ConvertedPage {
  using Element = float;
  static constexpr bool kFromMemory = false;
  static constexpr bool kInteger = false;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load(p); }
};

template <class S, class Stored>
void store_float_key(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  using Element = typename Stored::Element;
  Element* lane =
      reinterpret_cast<Element*>(page) + slot / kLanes * kLanes * head_dim + slot % kLanes;
  Element run[kLanes];
  const auto scatter = [&](int64_t d, int n) {
    for (int i = 0; i < n; ++i) lane[(d + i) * kLanes] = run[i];
  };
  for_lanes(
      head_dim,
      [&](int64_t d) {
        Stored::store(run, S::load(x + d));
        scatter(d, kLanes);
      },
      [&](int64_t d, int n) {
        Stored::store(run, S::load_n(x + d, n));
        scatter(d, n);
      });
}

template <class S, class Stored>
void store_float_value(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  using Element = typename Stored::Element;
  Element* row = reinterpret_cast<Element*>(page) + slot * padded(head_dim);
  for_lanes(
      head_dim, [&](int64_t d) { Stored::store(row + d, S::load(x + d)); },
      [&](int64_t d, int n) { Stored::store(row + d, S::load_n(x + d, n)); });
}

}  // namespace fewbit
