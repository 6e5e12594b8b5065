#include "sampling/proposal.h"

#include <algorithm>

namespace fewbit {

ProposalDraw draw_proposal(const Logits& logits, std::span<const int32_t> support,
                           const ProposalRequest& request, DrawBuffers& buffers) {
  TokenSampler& sampler = *request.sampler;
  Distribution& q = buffers.distribution;
  const float* values = logits.values + request.row * logits.stride;
  const LogitsRow row{values, logits.vocabulary, support, request.allowed};
  ProposalDraw draw;
  draw.fault = q.shape(row, sampler.rule, sampler.history);
  if (draw.fault != SamplingFault::kNone) {
    draw.row = request.row;
    draw.where = q.where();
    return draw;
  }
  int32_t column = 0;
  if (request.into == nullptr) {
    column = q.pick(sampler.uniform(request.position, Purpose::kToken));
  } else {
    q.write(request.into);
    std::fill(request.into + logits.vocabulary, request.into + logits.stride, 0.0f);
    buffers.weights.load(request.into, logits.stride);
    column =
        buffers.weights.pick(sampler.uniform(request.position, Purpose::kDraft, request.start));
  }
  draw.token = row.id(column);
  sampler.remember(draw.token, true);
  return draw;
}

}  // namespace fewbit
