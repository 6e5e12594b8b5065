// From a row of logits to a distribution over tokens, and a draw from it: the native twin of
// `distribution` in src/fewbit/sampling, which describes the order of the steps.
//
// Sums over the vocabulary merge at fixed boundaries: floats inside a block of 128 tokens, then
// doubles over blocks in ascending order. Nothing depends on threads or instruction set.
#pragma once

#include <cstdint>
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
  int32_t id;
  float mass;  // e^(scaled logit), at most 1
};

// One row's distribution; keeps its buffers from row to row.
class Distribution {
 public:
  explicit Distribution(const RowKernels& kernels) : kernels_(&kernels) {}

  // Reads `vocabulary` logits. After a fault the distribution is unusable and `where()` is the
  // token that caused it.
  SamplingFault shape(const float* logits, int64_t vocabulary, const SamplingRule& rule,
                      const TokenCounts& history);
  int64_t where() const { return where_; }

  // The token at which the cumulative probability, in ascending id order, first exceeds `uniform`.
  int32_t pick(double uniform) const;

  // Writes the probability of each of the `vocabulary` tokens.
  void probabilities(double* out) const;

  // The token with the largest logit, the mass of all tokens in units of its own before truncation,
  // and those that truncation left, in ascending id order.
  int64_t best() const { return best_; }
  double untruncated() const { return untruncated_; }
  const std::vector<Candidate>& candidates() const { return candidates_; }

 private:
  void copy(const float* logits);
  bool adjust(const SamplingRule& rule, const TokenCounts& history);
  SamplingFault find_best(const float* values);
  void exponentiate(float temperature);
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
  std::vector<Candidate> candidates_;  // in ascending id order
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
