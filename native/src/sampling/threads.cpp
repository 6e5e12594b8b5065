#include "sampling/threads.h"

#include "simd/float_environment.h"

namespace fewbit {

SamplingThreads::SamplingThreads(std::shared_ptr<ThreadPool> pool)
    : pool_(std::move(pool)), buffers_(pool_ ? static_cast<size_t>(pool_->size()) : 1) {}

std::vector<BlockDraws> SamplingThreads::draw(const float* logits, int64_t stride,
                                              int64_t vocabulary,
                                              const std::vector<BlockRequest>& requests) {
  const std::lock_guard<std::mutex> turn(turn_);
  std::vector<BlockDraws> draws(requests.size());
  std::atomic<size_t> next{0};
  std::mutex failing;
  std::exception_ptr failure;
  const auto job = [&](int thread) {
    Buffers& own = buffers_[static_cast<size_t>(thread)];
    try {
      for (size_t i = next++; i < requests.size(); i = next++)
        draws[i] =
            draw_block(logits, stride, vocabulary, requests[i], own.distribution, own.scratch);
    } catch (...) {
      const std::lock_guard<std::mutex> alone(failing);
      failure = std::current_exception();
    }
  };
  if (pool_ && requests.size() > 1) {
    pool_->run(job);
  } else {
    const FloatEnvironment environment;
    job(0);
  }
  if (failure) std::rethrow_exception(failure);
  return draws;
}

}  // namespace fewbit
