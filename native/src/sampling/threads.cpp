#include "sampling/threads.h"

#include <atomic>
#include <exception>

#include "simd/float_environment.h"

namespace fewbit {

SamplingThreads::SamplingThreads(std::shared_ptr<ThreadPool> pool)
    : pool_(std::move(pool)), buffers_(pool_ ? static_cast<size_t>(pool_->size()) : 1) {}

void SamplingThreads::each(size_t count,
                           const std::function<void(size_t i, DrawBuffers& own)>& draw) {
  const std::lock_guard<std::mutex> turn(turn_);
  std::atomic<size_t> next{0};
  std::mutex failing;
  std::exception_ptr failure;
  const auto job = [&](int thread) {
    try {
      for (size_t i = next++; i < count; i = next++) draw(i, buffers_[static_cast<size_t>(thread)]);
    } catch (...) {
      const std::lock_guard<std::mutex> alone(failing);
      failure = std::current_exception();
    }
  };
  if (pool_ && count > 1) {
    pool_->run(job);
  } else {
    const FloatEnvironment environment;
    job(0);
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<BlockDraws> SamplingThreads::draw(const Logits& logits,
                                              const std::vector<BlockRequest>& requests) {
  std::vector<BlockDraws> draws(requests.size());
  each(requests.size(),
       [&](size_t i, DrawBuffers& own) { draws[i] = draw_block(logits, requests[i], own); });
  return draws;
}

std::vector<ProposalDraw> SamplingThreads::propose(const Logits& logits,
                                                   std::span<const int32_t> support,
                                                   const std::vector<ProposalRequest>& requests) {
  std::vector<ProposalDraw> draws(requests.size());
  each(requests.size(), [&](size_t i, DrawBuffers& own) {
    draws[i] = draw_proposal(logits, support, requests[i], own);
  });
  return draws;
}

}  // namespace fewbit
