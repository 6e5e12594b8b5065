#include "machine/together.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace fewbit {

double run_together(int threads, const std::function<void(int thread)>& job) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  const auto wait_and_run = [&](int thread) {
    ++ready;
    while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
    job(thread);
  };
  std::vector<std::jthread> workers;
  try {
    for (int i = 0; i < threads; ++i) workers.emplace_back(wait_and_run, i);
  } catch (...) {
    go = true;  // those that started must end before their job goes out of scope
    throw;
  }
  while (ready.load() < threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  workers.clear();  // joins
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count();
}

}  // namespace fewbit
