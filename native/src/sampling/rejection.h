// Judging a block by what it was drawn from: the native twins of `exact_accept_reject`,
// `block_accept_reject` and `tree_accept_reject` in src/fewbit/speculate, which say what is
// computed and why it is exact.
//
// Probabilities are doubles: a token's float mass over the double sum of all of them. The sum of
// the draft's row is the one that `draw_proposal` drew by.
#pragma once

#include "sampling/block.h"

namespace fewbit {

BlockDraws reject(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers);

}  // namespace fewbit
