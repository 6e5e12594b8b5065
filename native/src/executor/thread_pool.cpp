#include "executor/thread_pool.h"

#include <unistd.h>

#include "simd/float_environment.h"

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

ThreadPool::ThreadPool(int threads) : process_(getpid()) {
  workers_.reserve(threads - 1);
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (forked()) {
    // Handles of threads that this process never had can be neither joined nor detached.
    new std::vector<std::thread>(std::move(workers_));
  } else {
    stop();
  }
}

bool ThreadPool::forked() const { return getpid() != process_; }

void ThreadPool::stop() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int thread)>& job) {
  FloatEnvironment environment;
  // Before the lock: another thread of the parent may have held it when this process was forked.
  if (workers_.empty() || forked()) return job(0);
  std::lock_guard<std::mutex> turn(turn_);
  job_ = &job;
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  door_.store(uint64_t{generation} << 32 | kOpen, std::memory_order_release);
  // Sequentially consistent: notify_all looks for sleepers, and must not look before this is seen.
  generation_.store(generation);
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
