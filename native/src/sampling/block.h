// Drawing the tokens of one sequence from a block of rows, along a draft or without one.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/pipeline.h"

namespace fewbit {

struct TokenSampler {
  SamplingRule rule;
  TokenCounts history;  // kept only where penalties look at it

  void remember(int32_t token, bool generated);
};

struct BlockRequest {
  TokenSampler* sampler;
  int64_t row;
  int64_t position;
  std::vector<int32_t> draft;
  int64_t top;  // likeliest tokens to report; < 0 leaves log-probabilities out
};

struct BlockDraws {
  std::vector<int32_t> tokens;
  std::vector<RowLogprobs> logprobs;  // one a token, or none
  SamplingFault fault = SamplingFault::kNone;
  int64_t row = 0;    // of the fault
  int64_t where = 0;  // token of the fault
};

// Draws row by row and stops after the first token that is not the draft's.
BlockDraws draw_block(const float* logits, int64_t stride, int64_t vocabulary,
                      const BlockRequest& request, Distribution& distribution,
                      Distribution& scratch);

}  // namespace fewbit
