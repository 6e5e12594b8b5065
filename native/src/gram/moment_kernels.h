// Sums over rows of x^2 and |x| in float64, and the largest |x|, one column a lane: each column's
// chain goes through the rows in order, so every instruction set computes the same bits. Plain
// loops over 16 columns, which the compiler turns into vectors.
#pragma once

#include <cmath>

#include "gram/gram.h"
#include "simd/simd.h"

namespace fewbit {

inline constexpr int64_t kAhead = 8;

template <class S>
void sum_moments(const float* x, int64_t stride, int64_t rows, int64_t columns,
                 const ColumnSums& sums) {
  double squares[kMomentColumns], absolute[kMomentColumns];
  int32_t largest[kMomentColumns];  // bits, whose order has NaN above infinity
  const auto size = static_cast<size_t>(columns);
  __builtin_memcpy(squares, sums.squares, size * sizeof(double));
  __builtin_memcpy(absolute, sums.absolute, size * sizeof(double));
  __builtin_memcpy(largest, sums.largest, size * sizeof(float));
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      // Rows lie on pages of their own, where the processor sees no stream.
      S::prefetch(x + kAhead * stride + i);
      int32_t bits[kLanes];
      double value[kLanes];
      __builtin_memcpy(bits, x + i, sizeof(bits));
#pragma GCC unroll 1
      for (int k = 0; k < kLanes; ++k) bits[k] &= INT32_MAX;
#pragma GCC unroll 1
      for (int k = 0; k < kLanes; ++k)
        largest[i + k] = bits[k] > largest[i + k] ? bits[k] : largest[i + k];
#pragma GCC unroll 1
      for (int k = 0; k < kLanes; ++k) value[k] = static_cast<double>(x[i + k]);
#pragma GCC unroll 1
      for (int k = 0; k < kLanes; ++k) squares[i + k] += value[k] * value[k];
#pragma GCC unroll 1
      for (int k = 0; k < kLanes; ++k) absolute[i + k] += __builtin_fabs(value[k]);
    }
    for (; i < columns; ++i) {
      int32_t bits;
      __builtin_memcpy(&bits, x + i, sizeof(bits));
      bits &= INT32_MAX;
      if (bits > largest[i]) largest[i] = bits;
      const double value = x[i];
      squares[i] += value * value;
      absolute[i] += __builtin_fabs(value);
    }
  }
  __builtin_memcpy(sums.squares, squares, size * sizeof(double));
  __builtin_memcpy(sums.absolute, absolute, size * sizeof(double));
  __builtin_memcpy(sums.largest, largest, size * sizeof(float));
}

}  // namespace fewbit
