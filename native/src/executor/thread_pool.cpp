#include "executor/thread_pool.h"

#include "executor/float_environment.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace fewbit {

namespace {

// About half a millisecond of waiting before a worker sleeps: longer than the gap between two
// steps of a running generation, short enough not to starve another process.
constexpr int kTriesBeforeSleep = 1 << 12;

}  // namespace

void pause_briefly() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(threads - 1);
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int thread)>& job) {
  FloatEnvironment environment;
  std::lock_guard<std::mutex> turn(turn_);
  if (workers_.empty()) return job(0);
  job_ = &job;
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  door_.store(uint64_t{generation} << 32 | kOpen, std::memory_order_release);
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();
  job(0);
  door_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (Spin spin; door_.load(std::memory_order_acquire) & kInside;) spin.wait();
}

void ThreadPool::work(int thread) {
  FloatEnvironment environment;
  for (uint32_t seen = 0;;) {
    seen = wait_for_generation_after(seen);
    if (stopping_.load()) return;
    if (!enter(seen)) continue;
    (*job_)(thread);
    door_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

uint32_t ThreadPool::wait_for_generation_after(uint32_t seen) {
  for (Spin spin; spin.tries() < kTriesBeforeSleep; spin.wait()) {
    const uint32_t now = generation_.load(std::memory_order_acquire);
    if (now != seen) return now;
  }
  generation_.wait(seen, std::memory_order_acquire);
  return generation_.load(std::memory_order_acquire);
}

bool ThreadPool::enter(uint32_t generation) {
  uint64_t door = door_.load(std::memory_order_acquire);
  while (door >> 32 == generation && (door & kOpen)) {
    if (door_.compare_exchange_weak(door, door + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

}  // namespace fewbit
