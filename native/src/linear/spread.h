// Work in many pieces, for threads that last as long as it does.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace fewbit {

// Runs `work(i)` for every i below `count`, on the caller and up to `threads` - 1 others. `work`
// must not throw.
template <class Work>
void spread(int64_t count, int threads, const Work& work) {
  std::atomic<int64_t> next{0};
  const auto take = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < count;) work(i);
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads && i < count; ++i) others.emplace_back(take);
  } catch (const std::exception&) {
    // The system gives no more threads: those that it gave and this one do all of the work.
  }
  take();
  for (auto& other : others) other.join();
}

}  // namespace fewbit
