// A row of float weights to draw from: sums by block in doubles, so that what is drawn has exactly
// the chance weight / sum.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/row_kernels.h"

namespace fewbit {

class RowWeights {
 public:
  explicit RowWeights(const RowKernels& kernels) : kernels_(&kernels) {}

  // Looks at weights that stay where they are.
  void load(const float* weights, int64_t count);

  double total() const { return total_; }

  // The place at which the weights, in ascending order, first exceed this share of their sum.
  int32_t pick(double uniform) const;

 private:
  const RowKernels* kernels_;
  const float* weights_ = nullptr;
  int64_t count_ = 0;
  double total_ = 0;
  std::vector<double> block_sums_;
};

}  // namespace fewbit
