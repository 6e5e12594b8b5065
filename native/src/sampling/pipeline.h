// From a row of logits to a distribution over tokens, and a draw from it: the native twin of
// `distribution` in src/fewbit/sampling, which describes the order of the steps.
//
// Sums over the vocabulary merge at fixed boundaries: floats inside a block of 128 tokens, then
// doubles over blocks in ascending order. Nothing depends on threads or instruction set.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sampling/row_kernels.h"

namespace fewbit {

struct SamplingRule {
  float temperature;  // 0 is greedy
  int64_t top_k;      // 0 is off
  double top_p;       // 1 is off
  double min_p;       // 0 is off
  float repetition;
  float frequency;
  float presence;
  std::vector<std::pair<int32_t, float>> bias;  // -inf bans
  uint64_t seed;
  uint64_t sample;

  bool greedy() const { return temperature == 0; }
  bool truncates() const { return top_k > 0 || top_p < 1 || min_p > 0; }
  bool penalizes() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

// How often each token was generated; tokens of the prompt alone count 0.
using TokenCounts = std::unordered_map<int32_t, int32_t>;

enum class SamplingFault : uint8_t { kNone, kNotFinite, kAllMasked };

struct Candidate {
  uint32_t key;  // ascending key is descending logit
  int32_t id;    // a column
  float mass;    // e^(scaled logit), at most 1
};

// A row of logits and what its columns stand for.
struct LogitsRow {
  const float* values;
  int64_t count;                      // columns that are looked at
  std::span<const int32_t> ids = {};  // of the columns, ascending; empty where a column is its id
  const uint32_t* allowed = nullptr;  // a bit for each id that may be drawn; null for all

  // Where a token stands, -1 where it has no column.
  int64_t column(int32_t id) const;
  int32_t id(int64_t column) const {
    return ids.empty() ? static_cast<int32_t>(column) : ids[static_cast<size_t>(column)];
  }
};

// One row's distribution over its columns; keeps its buffers from row to row.
class Distribution {
 public:
  explicit Distribution(const RowKernels& kernels) : kernels_(&kernels) {}

  // After a fault the distribution is unusable and `where()` is the column that caused it.
  SamplingFault shape(const LogitsRow& row, const SamplingRule& rule, const TokenCounts& history);
  int64_t where() const { return where_; }

  // The column at which the cumulative probability, in ascending order, first exceeds `uniform`.
  int32_t pick(double uniform) const;

  // Writes the probability of each column, or a float near it.
  void probabilities(double* out) const;
  void write(float* out) const;
  double probability(int64_t column) const;

  // Makes max(weight * p - q, 0) ready to be picked from and returns its sum. `drawn` are q's
  // weights, 0 beyond the columns up to a whole block; q is `scale` times them.
  double subtract(double weight, const float* drawn, double scale);
  // As `pick`, from what `subtract` left; from p where it left nothing.
  int32_t pick_remainder(double uniform) const;

  // The column with the largest logit, the mass of all in units of its own before truncation, and
  // those that truncation left, in ascending order.
  int64_t best() const { return best_; }
  double untruncated() const { return untruncated_; }
  const std::vector<Candidate>& candidates() const { return candidates_; }

 private:
  void copy(const float* logits, int64_t begin);
  void adjust(const LogitsRow& row, const SamplingRule& rule, const TokenCounts& history);
  void forbid(const LogitsRow& row);
  SamplingFault find_best(const float* values);
  void exponentiate(const float* logits, float temperature);
  void truncate(const SamplingRule& rule);
  void collect_top_k(int64_t k);
  void collect_mass(double smallest);
  int32_t pick_in_block(int64_t block, double remaining) const;

  const RowKernels* kernels_;
  int64_t vocabulary_ = 0;
  int64_t blocks_ = 0;
  int64_t where_ = 0;
  int64_t best_ = 0;
  double total_ = 0;
  double untruncated_ = 0;
  bool whole_ = false;         // every token is kept; otherwise `candidates_` are
  std::vector<float> values_;  // logits, later scaled logits; padded to blocks with -inf
  std::vector<float> mass_;
  std::vector<float> block_max_;
  std::vector<double> block_mass_;
  std::vector<Candidate> candidates_;  // in ascending order
  // What `subtract` took away, and what it left by block, or by candidate.
  double mass_scale_ = 0;
  double drawn_scale_ = 0;
  const float* drawn_ = nullptr;
  double remainder_ = 0;
  std::vector<double> remainders_;
};

// The log-probability of `token` under unchanged logits is shifted - log(total); likewise of the
// `ids`, the likeliest tokens in the order (logit descending, id ascending).
struct RowLogprobs {
  double total;
  double shifted;
  std::vector<int32_t> ids;
  std::vector<double> others;
};

// `scratch` lends its buffers.
RowLogprobs row_logprobs(const float* logits, int64_t vocabulary, int32_t token, int64_t top,
                         Distribution& scratch);

}  // namespace fewbit
