#include "sampling/proposal.h"

#include <algorithm>

namespace fewbit {

namespace {

// The columns of the largest logits but one, ties to the first; only what may be drawn.
std::vector<int32_t> likeliest(const LogitsRow& row, int32_t but, int64_t count) {
  std::vector<int32_t> found;
  const auto allowed = [&](int32_t column) {
    const auto id = static_cast<uint32_t>(row.id(column));
    return row.allowed == nullptr || (row.allowed[id / 32] >> (id % 32) & 1) != 0;
  };
  for (int32_t column = 0; column < row.count; ++column) {
    const bool full = static_cast<int64_t>(found.size()) == count;
    if (full && !(row.values[found.back()] < row.values[column])) continue;
    if (column == but || !allowed(column)) continue;
    if (full) found.pop_back();
    const auto after = std::find_if(found.begin(), found.end(), [&](int32_t other) {
      return row.values[other] < row.values[column];
    });
    found.insert(after, column);
  }
  return found;
}

// Columns drawn one after another from what is left of the weights without those before.
std::vector<int32_t> without_replacement(const ProposalRequest& request, int64_t columns,
                                         int32_t first, DrawBuffers& buffers) {
  std::vector<float>& left = buffers.left;
  left.assign(request.into, request.into + columns);
  std::vector<int32_t> found;
  int32_t last = first;
  for (int64_t rank = 1; rank <= request.siblings; ++rank) {
    left[static_cast<size_t>(last)] = 0;
    buffers.weights.load(left.data(), columns);
    if (!(buffers.weights.total() > 0)) break;
    last = buffers.weights.pick(request.sampler->uniform(request.position, Purpose::kDraft,
                                                         block_key(request.start, rank)));
    found.push_back(last);
  }
  return found;
}

}  // namespace

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
  if (request.siblings > 0) {
    draw.siblings = request.into == nullptr
                        ? likeliest(row, column, request.siblings)
                        : without_replacement(request, logits.stride, column, buffers);
    for (int32_t& sibling : draw.siblings) sibling = row.id(sibling);
  }
  draw.token = row.id(column);
  sampler.remember(draw.token, true);
  return draw;
}

}  // namespace fewbit
