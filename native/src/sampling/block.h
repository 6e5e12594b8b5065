// Drawing the tokens of one sequence from a block of rows, along a draft or without one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/sampler.h"
#include "sampling/weights.h"

namespace fewbit {

// `Verifier` of src/fewbit/sampling, which says what each does.
enum class Judge : uint8_t { kMatch, kToken, kBlock };

// What each drafted token was drawn from: float rows over the ids `support` (ascending; empty for
// the ids 0 to columns - 1).
struct DrawnFrom {
  const float* rows = nullptr;
  int64_t columns = 0;
  std::span<const int32_t> support = {};
};

// Tokens that may come after the first `depth` of a draft in place of its others.
struct Branch {
  int64_t depth;
  std::vector<int32_t> tokens;
};

// The rows of the draft come first, those of the branches after them, one a token.
struct BlockRequest {
  TokenSampler* sampler;
  int64_t row;
  int64_t position;
  std::vector<int32_t> draft;
  int64_t top;  // likeliest tokens to report; < 0 leaves log-probabilities out
  Judge judge = Judge::kMatch;
  std::vector<Branch> branches = {};
  DrawnFrom drawn_from = {};          // for kToken and kBlock
  const uint32_t* allowed = nullptr;  // `allowed_words` for each row; null for no constraint
  int64_t allowed_words = 0;
};

struct BlockDraws {
  std::vector<int32_t> tokens;
  int64_t branch = -1;  // on which the accepted tokens end; -1 where they are the draft's
  std::vector<RowLogprobs> logprobs;  // one a token, or none
  SamplingFault fault = SamplingFault::kNone;
  int64_t row = 0;    // of the fault
  int64_t where = 0;  // token of the fault
};

// One thread's buffers, kept from call to call: they are as large as the vocabulary.
struct DrawBuffers {
  Distribution distribution{best_row_kernels()};
  Distribution scratch{best_row_kernels()};
  RowWeights weights{best_row_kernels()};
  std::vector<float> drafted;  // a draft's weights by column; all 0 between two uses
  std::vector<float> left;     // of those that siblings are drawn from
  std::vector<double> target_left, draft_left;  // while siblings are judged
};

// The way from a block's first row to one of its others, token by token.
class Walk {
 public:
  explicit Walk(const BlockRequest& request) : request_(&request) {}

  // The row of the block that the way has come to.
  int64_t row() const;
  int64_t branch() const { return branch_; }
  // Goes on to the drafted token that this is; false where it is none.
  bool follow(int32_t token);

 private:
  const BlockRequest* request_;
  int64_t branch_ = -1;
  int64_t taken_ = 0;  // tokens of the draft, or of the branch
};

// The rows of the logits, and how many of their columns are tokens.
struct Logits {
  const float* values;
  int64_t stride;
  int64_t vocabulary;

  LogitsRow row(const BlockRequest& request, int64_t j) const;
};

// The tokens that the request's judge lets stand, and the one after them. A fault is reported where
// the draw comes to its row, after the tokens before it.
BlockDraws draw_block(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers);

}  // namespace fewbit
