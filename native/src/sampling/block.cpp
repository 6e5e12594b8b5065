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
  Walk walk(request);
  for (bool drafted = true; drafted;) {
    const int64_t row = walk.row();
    draws.fault = distribution.shape(logits.row(request, row), sampler.rule, sampler.history);
    if (draws.fault != SamplingFault::kNone) {
      draws.row = request.row + row;
      draws.where = distribution.where();
      break;
    }
    const int64_t position = request.position + static_cast<int64_t>(draws.tokens.size());
    const int32_t token = distribution.pick(sampler.uniform(position, Purpose::kToken));
    draws.tokens.push_back(token);
    sampler.remember(token, true);
    drafted = walk.follow(token);
  }
  draws.branch = walk.branch();
  return draws;
}

}  // namespace

int64_t Walk::row() const {
  if (branch_ < 0) return taken_;
  auto row = static_cast<int64_t>(request_->draft.size());
  for (int64_t i = 0; i < branch_; ++i)
    row += static_cast<int64_t>(request_->branches[static_cast<size_t>(i)].tokens.size());
  return row + taken_;
}

bool Walk::follow(int32_t token) {
  const auto& drafted =
      branch_ < 0 ? request_->draft : request_->branches[static_cast<size_t>(branch_)].tokens;
  if (taken_ < static_cast<int64_t>(drafted.size()) &&
      drafted[static_cast<size_t>(taken_)] == token) {
    ++taken_;
    return true;
  }
  if (branch_ >= 0) return false;
  for (size_t i = 0; i < request_->branches.size(); ++i) {
    const Branch& branch = request_->branches[i];
    if (branch.depth != taken_ || branch.tokens.front() != token) continue;
    branch_ = static_cast<int64_t>(i);
    taken_ = 1;
    return true;
  }
  return false;
}

LogitsRow Logits::row(const BlockRequest& request, int64_t j) const {
  LogitsRow row{values + (request.row + j) * stride, vocabulary};
  if (request.allowed != nullptr) row.allowed = request.allowed + j * request.allowed_words;
  return row;
}

BlockDraws draw_block(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers) {
  BlockDraws draws = request.judge == Judge::kMatch ? match(logits, request, buffers)
                                                    : reject(logits, request, buffers);
  if (request.top < 0) return draws;
  Walk walk(request);
  for (const int32_t token : draws.tokens) {
    const float* row = logits.values + (request.row + walk.row()) * logits.stride;
    draws.logprobs.push_back(
        row_logprobs(row, logits.vocabulary, token, request.top, buffers.scratch));
    walk.follow(token);
  }
  return draws;
}

}  // namespace fewbit
