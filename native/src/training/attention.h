// Causal attention of whole sequences and its gradients, for tuning; needs `multiplies(isa)`.
#pragma once

#include <cstdint>

#include "executor/thread_pool.h"
#include "training/training.h"

namespace fewbit {

// Everything bf16. Query i of a sequence sees keys up to i, `window` of them at most (0: all).
struct AttentionTask {
  const uint16_t* q;  // [batch][length][heads][width]
  const uint16_t* k;  // [batch][length][kv_heads][width]
  const uint16_t* v;  // as k
  int64_t batch;
  int64_t length;
  int64_t heads;
  int64_t kv_heads;
  int64_t width;
  int64_t window;
  float scale;
};

// Where the gradients of q, k and v go.
struct AttentionPull {
  const uint16_t* gradient;  // of the result, as q
  uint16_t* towards_q;
  uint16_t* towards_k;
  uint16_t* towards_v;
};

// softmax(scale q k^T) v into `out`, [batch][length][heads][width].
void attend(const AttentionTask& task, uint16_t* out, const TrainingKernels& kernels,
            ThreadPool& pool);

// Probabilities are computed again: nothing of length x length outlives a key head.
void attend_back(const AttentionTask& task, const AttentionPull& pull,
                 const TrainingKernels& kernels, ThreadPool& pool);

}  // namespace fewbit
