// Drawing for many sequences at once, a sequence by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/thread_pool.h"
#include "sampling/block.h"
#include "sampling/proposal.h"

namespace fewbit {

class SamplingThreads {
 public:
  // Null for the caller's thread alone.
  explicit SamplingThreads(std::shared_ptr<ThreadPool> pool);

  // The draws of each request, in order; the requests name different samplers. Callers on several
  // threads take turns.
  std::vector<BlockDraws> draw(const Logits& logits, const std::vector<BlockRequest>& requests);

  // As `draw_proposal`, likewise.
  std::vector<ProposalDraw> propose(const Logits& logits, std::span<const int32_t> support,
                                    const std::vector<ProposalRequest>& requests);

 private:
  void each(size_t count, const std::function<void(size_t i, DrawBuffers& own)>& draw);

  std::shared_ptr<ThreadPool> pool_;
  std::vector<DrawBuffers> buffers_;  // by thread
  std::mutex turn_;
};

}  // namespace fewbit
