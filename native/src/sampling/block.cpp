#include "sampling/block.h"

#include <cstddef>

#include "sampling/philox.h"

namespace fewbit {

void TokenSampler::remember(int32_t token, bool generated) {
  if (rule.penalizes()) history[token] += generated ? 1 : 0;
}

BlockDraws draw_block(const float* logits, int64_t stride, int64_t vocabulary,
                      const BlockRequest& request, Distribution& distribution,
                      Distribution& scratch) {
  BlockDraws draws;
  TokenSampler& sampler = *request.sampler;
  const SamplingRule& rule = sampler.rule;
  const auto length = static_cast<int64_t>(request.draft.size());
  for (int64_t j = 0; j <= length; ++j) {
    const float* row = logits + (request.row + j) * stride;
    draws.fault = distribution.shape(row, vocabulary, rule, sampler.history);
    if (draws.fault != SamplingFault::kNone) {
      draws.row = request.row + j;
      draws.where = distribution.where();
      return draws;
    }
    const auto position = static_cast<uint64_t>(request.position + j);
    const double uniform = keyed_uniform(rule.seed, rule.sample, position, kPurposeToken);
    const int32_t token = distribution.pick(uniform);
    draws.tokens.push_back(token);
    if (request.top >= 0)
      draws.logprobs.push_back(row_logprobs(row, vocabulary, token, request.top, scratch));
    sampler.remember(token, true);
    if (j == length || token != request.draft[static_cast<size_t>(j)]) break;
  }
  return draws;
}

}  // namespace fewbit
