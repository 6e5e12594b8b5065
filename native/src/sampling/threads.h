// Drawing for many sequences at once, a sequence by one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/thread_pool.h"
#include "sampling/block.h"

namespace fewbit {

class SamplingThreads {
 public:
  // Null for the caller's thread alone.
  explicit SamplingThreads(std::shared_ptr<ThreadPool> pool);

  // The draws of each request, in order; the requests name different samplers. Callers on several
  // threads take turns.
  std::vector<BlockDraws> draw(const float* logits, int64_t stride, int64_t vocabulary,
                               const std::vector<BlockRequest>& requests);

 private:
  // One thread's buffers, kept from call to call: they are as large as the vocabulary.
  struct Buffers {
    Distribution distribution{best_row_kernels()};
    Distribution scratch{best_row_kernels()};
  };

  std::shared_ptr<ThreadPool> pool_;
  std::vector<Buffers> buffers_;  // by thread
  std::mutex turn_;
};

}  // namespace fewbit
