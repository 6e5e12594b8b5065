// X^T X in float32: p = fma(x_i, x_j, p) over the rows of a block in ascending order, then
// g = g + p. Lanes are columns j, so every instruction set computes the same bits.
#pragma once

#include "gram/gram.h"
#include "simd/simd.h"

namespace fewbit {

inline constexpr size_t kFloatPanelBytes = sizeof(float) * kGramRows * kPanelColumns;

// A panel is its rows, 64 floats each.
inline void pack_floats(const float* x, int64_t stride, int64_t rows, int64_t columns,
                        uint8_t* panel) {
  auto* to = reinterpret_cast<float*>(panel);
  for (int64_t row = 0; row < rows; ++row, x += stride, to += kPanelColumns) {
    __builtin_memcpy(to, x, static_cast<size_t>(columns) * sizeof(float));
    __builtin_memset(to + columns, 0, static_cast<size_t>(kPanelColumns - columns) * sizeof(float));
  }
}

// What of a 64 x 64 square the registers hold at once: I rows of V vectors.
template <class S>
inline constexpr int kGramVectors = S::kRegisters >= 32 ? 4 : 1;
template <class S>
inline constexpr int kGramInputs = S::kRegisters > 0 ? 4 : 1;

template <class S, int I, int V>
FEWBIT_INLINE void gram_tile(const float* a, const float* b, int64_t rows, float* p) {
  typename S::F32 acc[I][V];
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[i][v] = S::zero_f32();
  }
  for (int64_t row = 0; row < rows; ++row, a += kPanelColumns, b += kPanelColumns) {
    typename S::F32 right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) right[v] = S::load(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) {
      const typename S::F32 left = S::set1(a[i]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[i][v] = S::fma(left, right[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) S::store(p + (i * V + v) * kLanes, acc[i][v]);
  }
}

template <class S>
void multiply_panels(const uint8_t* a, const uint8_t* b, int64_t rows, int64_t a_columns,
                     int64_t b_columns, float* c, int64_t stride) {
  constexpr int kInputs = kGramInputs<S>;
  constexpr int kVectors = kGramVectors<S>;
  constexpr int64_t kWide = kVectors * kLanes;
  const auto* left = reinterpret_cast<const float*>(a);
  const auto* right = reinterpret_cast<const float*>(b);
  for (int64_t j = 0; j < b_columns; j += kWide) {
    const int64_t wide = b_columns - j < kWide ? b_columns - j : kWide;
    for (int64_t i = 0; i < a_columns; i += kInputs) {
      alignas(64) float p[kInputs * kWide];
      gram_tile<S, kInputs, kVectors>(left + i, right + j, rows, p);
      for (int64_t r = 0; r < kInputs && i + r < a_columns; ++r) {
        float* to = c + (i + r) * stride + j;
        for (int64_t column = 0; column < wide; ++column) to[column] += p[r * kWide + column];
      }
    }
  }
}

}  // namespace fewbit
