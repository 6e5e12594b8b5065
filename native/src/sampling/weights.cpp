#include "sampling/weights.h"

#include <algorithm>
#include <cstddef>

namespace fewbit {

void RowWeights::load(const float* weights, int64_t count) {
  weights_ = weights;
  count_ = count;
  block_sums_.resize(static_cast<size_t>((count + kVocabularyBlock - 1) / kVocabularyBlock));
  kernels_->sum(weights, count, block_sums_.data());
  total_ = 0;
  for (const double sum : block_sums_) total_ += sum;
}

int32_t RowWeights::pick(double uniform) const {
  double remaining = uniform * total_;
  int64_t block = 0;
  for (size_t b = 0; b < block_sums_.size(); ++b) {
    if (block_sums_[b] > 0) block = static_cast<int64_t>(b);
    if (remaining < block_sums_[b]) break;
    remaining -= block_sums_[b];
  }
  int64_t found = block * kVocabularyBlock;
  const int64_t end = std::min(found + kVocabularyBlock, count_);
  for (int64_t i = found; i < end; ++i) {
    const auto weight = static_cast<double>(weights_[i]);
    if (weight <= 0) continue;
    found = i;
    remaining -= weight;
    if (remaining < 0) break;
  }
  return static_cast<int32_t>(found);
}

}  // namespace fewbit
