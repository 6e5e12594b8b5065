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
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load_f16(p); }
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) { S::store_f16(p, x); }
};

template <class S>
struct StoredF32 {
  using Element = float;
  static constexpr bool kFromMemory = true;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load(p); }
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) { S::store(p, x); }
};

FEWBIT_INLINE int64_t padded(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

// A page that was converted to float32 and lies in the nearest cache.
template <class S>
struct ConvertedPage {
  using Element = float;
  static constexpr bool kFromMemory = false;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load(p); }
};

template <class S, class Stored>
void store_key(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
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
void store_value(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  using Element = typename Stored::Element;
  Element* row = reinterpret_cast<Element*>(page) + slot * padded(head_dim);
  for_lanes(
      head_dim, [&](int64_t d) { Stored::store(row + d, S::load(x + d)); },
      [&](int64_t d, int n) { Stored::store(row + d, S::load_n(x + d, n)); });
}

}  // namespace fewbit
