// Faults planted on purpose: sanitize.sh requires that each is reported before it believes that
// the core has none.
#include <nanobind/nanobind.h>

#include <atomic>
#include <climits>
#include <memory>

#include "executor/thread_pool.h"

namespace nb = nanobind;

namespace {

int read_beyond_the_end() {
  const auto values = std::make_unique<int[]>(4);
  const volatile int four = 4;
  return values[four];
}

int overflow_an_integer() {
  volatile int most = INT_MAX;
  return most + 1;
}

// Two threads of a pool write one variable; the flag puts them side by side and orders nothing. The
// sanitizer misses one such race now and then, a hundred never.
int race_in_a_pool() {
  fewbit::ThreadPool pool(2);
  int shared = 0;
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> inside{0};
    pool.run([&](int thread) {
      inside.fetch_add(1, std::memory_order_relaxed);
      for (fewbit::Spin spin; thread == 0 && inside.load(std::memory_order_relaxed) < 2;) {
        spin.wait();
      }
      ++shared;
    });
  }
  return shared;
}

}  // namespace

NB_MODULE(_planted, module) {
  module.def("read_beyond_the_end", &read_beyond_the_end);
  module.def("overflow_an_integer", &overflow_an_integer);
  module.def("race_in_a_pool", &race_in_a_pool);
}
