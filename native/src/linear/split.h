// Weights in bf16 by float32 inputs on tiles of bf16: an input is the sum of three bf16 numbers, so
// three products of tiles give what one in float32 would, at a multiple of its speed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

inline constexpr int kPieces = 3;
inline constexpr size_t kPieceBytes = 2 * kRowBlock * kGroup;  // of 16 rows and 32 inputs

// Rows of activations [rows, columns], columns a multiple of 32, each value as three bf16 numbers
// whose sum it is: its upper 8 significant bits, the next 8, the last 8. In blocks of 16 rows (what
// lies behind the last row is never read for a row that there is), and in a block run after run of
// 32 inputs: of each the last bits of 16 rows x 32 inputs, then the middle ones, then the first.
struct SplitActivations {
  int64_t rows;
  int64_t columns;
  uint8_t* pieces;  // 64-byte aligned

  int64_t runs() const { return columns / kGroup; }
  // The run that begins at a column, of the block that has a row.
  uint8_t* run(int64_t row, int64_t column) const {
    return pieces + (row / kRowBlock * runs() + column / kGroup) * (kPieces * kPieceBytes);
  }
};

// Bytes that `rows` rows so cut take.
size_t split_bytes(int64_t rows, int64_t columns);

// Kernels of AMX alone: another instruction set has float32 to multiply with, and other bits.
struct SplitKernels {
  // Cuts x [columns], which are the columns from `first` on of a row of `a`; both multiples of 32.
  // A value that is not finite makes the outputs of its row NaN or infinite.
  void (*split)(const float* x, int64_t columns, const SplitActivations& a, int64_t row,
                int64_t first);

  // out[r * out_stride + o] = the chain over runs of 32 inputs in ascending order, from acc = 0,
  //   acc = acc + T(last bits), then of the middle ones, then of the first
  // then + bias[o] (+ 0 where bias is null). T is a run's product as TDPBF16PS computes it in
  // float32: fma(w, x, even) over its inputs 0, 2, .. 30 from 0, the same over 1, 3, .. 31, and the
  // sum of both; subnormal numbers are 0. Ranges, strides and bias as in LinearKernels::multiply.
  void (*multiply)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                   const SplitActivations& a, int64_t row_begin, int64_t row_end, const float* bias,
                   float* out, int64_t out_stride);
};

// Whether a matrix can be multiplied so.
constexpr bool fits_split(const PackedMatrix& w) {
  return w.codes == Codes::kBf16 && w.columns % kGroup == 0;
}

// Null where the instruction set has none.
const SplitKernels* split_kernels(Isa isa);

}  // namespace fewbit
