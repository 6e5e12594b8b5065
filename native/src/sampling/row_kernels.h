// The passes over a whole row of logits, per instruction set and with the same bits in each.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

// Sums and maxima over the vocabulary merge at these boundaries. A block is folded into 16 lanes (8
// of doubles, for sums) in ascending order, the lanes by one tree.
inline constexpr int64_t kVocabularyBlock = 128;

struct RowKernels {
  // Writes the largest value of each block of x[0, count) and returns whether all are finite. The
  // last block may be short. Without NaN the maxima hold even where values are infinite.
  bool (*scan)(const float* x, int64_t count, float* block_max);

  // For whole blocks: value = (x - best) / temperature; `values` may be `x`. Writes mass = e^value,
  // 0 where value < -87 (the result would be subnormal), and each block's sum of masses.
  void (*exponentiate)(const float* x, float* values, int64_t blocks, float best, float temperature,
                       float* mass, double* block_mass);

  // Writes the sum of each block of x[0, count), whose last may be short.
  void (*sum)(const float* x, int64_t count, double* block_sum);

  // For whole blocks: writes each block's sum of max(mass * scale - drawn * drawn_scale, 0).
  void (*remainder)(const float* mass, double scale, const float* drawn, double drawn_scale,
                    int64_t blocks, double* block_sum);
};

const RowKernels& row_kernels(Isa isa);

// Those of the best instruction set of this CPU.
const RowKernels& best_row_kernels();

}  // namespace fewbit
