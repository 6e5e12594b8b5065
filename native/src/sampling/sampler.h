// What draws the tokens of one sequence: its rule, what penalties know of its past, its numbers.
#pragma once

#include <cstdint>
#include <memory>

#include "sampling/numbers.h"
#include "sampling/pipeline.h"

namespace fewbit {

// A block's start as the key of a number about its further candidates for a position: the first has
// rank 0, the others 1, 2, ... `block_key` of src/fewbit/keyed_random.py.
constexpr int64_t block_key(int64_t start, int64_t rank) { return start + (rank << 32); }

struct TokenSampler {
  SamplingRule rule;
  TokenCounts history;                       // kept only where penalties look at it
  std::shared_ptr<ScriptedNumbers> numbers;  // null: keyed by the rule's seed and sample

  void remember(int32_t token, bool generated);

  // A number in [0, 1). `start` is the position of the first drafted token of the block that it
  // judges; 0 for a token that is drawn whatever was drafted.
  double uniform(int64_t position, Purpose purpose, int64_t start = 0) const;
};

// Tokens that a sampler remembers until it is known how many of them stand.
class Remembered {
 public:
  explicit Remembered(TokenSampler& sampler) : sampler_(&sampler) {}

  void add(int32_t token);
  // Forgets all but the first `count`.
  void keep(int64_t count);

 private:
  struct Added {
    int32_t token;
    bool is_new;
  };
  TokenSampler* sampler_;
  std::vector<Added> added_;
};

}  // namespace fewbit
