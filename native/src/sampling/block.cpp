#include "sampling/block.h"

#include <cstddef>

#include "sampling/rejection.h"

namespace fewbit {
namespace {

// Draws row by row as without a draft, and stops after the first token that is not the draft's.
BlockDraws match(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers) {
  BlockDraws draws;
  TokenSampler& sampler = *request.sampler;
  Distribution& distribution = buffers.distribution;
  const auto length = static_cast<int64_t>(request.draft.size());
  for (int64_t j = 0; j <= length; ++j) {
    draws.fault = distribution.shape(logits.row(request, j), sampler.rule, sampler.history);
    if (draws.fault != SamplingFault::kNone) {
      draws.row = request.row + j;
      draws.where = distribution.where();
      break;
    }
    const double uniform = sampler.uniform(request.position + j, Purpose::kToken);
    const int32_t token = distribution.pick(uniform);
    draws.tokens.push_back(token);
    sampler.remember(token, true);
    if (j == length || token != request.draft[static_cast<size_t>(j)]) break;
  }
  return draws;
}

}  // namespace

LogitsRow Logits::row(const BlockRequest& request, int64_t j) const {
  LogitsRow row{values + (request.row + j) * stride, vocabulary};
  if (request.allowed != nullptr) row.allowed = request.allowed + j * request.allowed_words;
  return row;
}

BlockDraws draw_block(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers) {
  BlockDraws draws = request.judge == Judge::kMatch ? match(logits, request, buffers)
                                                    : reject(logits, request, buffers);
  if (request.top < 0) return draws;
  for (size_t j = 0; j < draws.tokens.size(); ++j) {
    const float* row = logits.values + (request.row + static_cast<int64_t>(j)) * logits.stride;
    draws.logprobs.push_back(
        row_logprobs(row, logits.vocabulary, draws.tokens[j], request.top, buffers.scratch));
  }
  return draws;
}

}  // namespace fewbit
