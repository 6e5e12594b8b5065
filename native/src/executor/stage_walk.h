// All threads walk a list of stages together.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "executor/thread_pool.h"

namespace fewbit {

// A list of stages, each cut into units of work that may run in any order and on any thread. A
// stage starts when all units of the one before have ended.
class Stages {
 public:
  virtual ~Stages() = default;
  virtual int64_t count() const = 0;
  virtual int64_t units(int64_t stage) const = 0;
  virtual void run(int64_t stage, int64_t unit, int thread) = 0;
};

// Runs the stages in order. A stage's units are dealt to the threads in contiguous ranges (so a
// thread streams through neighbouring weights); a thread that is done takes from the others'
// ranges. The thread that ends a stage runs following stages of a single unit at once, without
// waking anyone, and then opens the next.
class StageWalk {
 public:
  explicit StageWalk(ThreadPool& pool);
  void run(Stages& stages);

 private:
  static constexpr int64_t kNotOpen = -1;

  // The next unit of one thread's range, tagged with the stage it belongs to, so that a thread
  // that slept through a stage cannot take a unit of another: [63:32] stage, [31:0] unit.
  struct alignas(64) Range {
    std::atomic<uint64_t> next{0};
  };

  void walk(Stages& stages, int thread);
  bool work_on(Stages& stages, int64_t stage, int thread);
  int64_t drain(Stages& stages, int64_t stage, int64_t units, int owner, int thread);
  void open_after(Stages& stages, int64_t stage, int thread);
  int64_t range_begin(int64_t units, int thread) const { return units * thread / threads_; }

  ThreadPool& pool_;
  int threads_;
  std::vector<Range> ranges_;
  alignas(64) std::atomic<int64_t> current_{kNotOpen};
  alignas(64) std::atomic<int64_t> ended_{0};
};

}  // namespace fewbit
