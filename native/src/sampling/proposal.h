// Drawing a draft's tokens, through the pipeline of the sequences that they are for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/block.h"

namespace fewbit {

struct ProposalRequest {
  TokenSampler* sampler;
  int64_t row;
  int64_t position;  // where the token stands
  int64_t start;     // where the first token of its block stands
  // Takes what the token is drawn from, a float a column; null draws by the number that the target
  // will draw by.
  float* into;
  const uint32_t* allowed;  // a bit for each of the target's ids; null for no constraint
  int64_t siblings = 0;     // other tokens that are wanted beside the one drawn
};

struct ProposalDraw {
  int32_t token = 0;
  // Drawn without replacement from what the token was drawn from; where it was drawn by the
  // target's number, the columns of the largest logits. Fewer where no more have a chance.
  std::vector<int32_t> siblings = {};
  SamplingFault fault = SamplingFault::kNone;
  int64_t row = 0;    // of the fault
  int64_t where = 0;  // column of the fault
};

// `logits.vocabulary` counts columns here, which stand for the ids `support`, or for themselves
// where it is empty.
ProposalDraw draw_proposal(const Logits& logits, std::span<const int32_t> support,
                           const ProposalRequest& request, DrawBuffers& buffers);

}  // namespace fewbit
