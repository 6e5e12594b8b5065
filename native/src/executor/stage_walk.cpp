#include "executor/stage_walk.h"

namespace fewbit {

StageWalk::StageWalk(ThreadPool& pool)
    : pool_(pool), threads_(pool.size()), ranges_(static_cast<size_t>(pool.size())) {}

void StageWalk::run(Stages& stages) {
  // Nobody is inside: ThreadPool::run returned from the last walk after all had left.
  current_.store(kNotOpen, std::memory_order_relaxed);
  pool_.run([&](int thread) {
    if (thread == 0) open_after(stages, kNotOpen, thread);
    walk(stages, thread);
  });
}

void StageWalk::walk(Stages& stages, int thread) {
  const int64_t count = stages.count();
  for (;;) {
    const int64_t stage = current_.load(std::memory_order_acquire);
    if (stage >= count) return;
    if (stage != kNotOpen && work_on(stages, stage, thread)) continue;
    for (Spin spin; current_.load(std::memory_order_acquire) == stage;) spin.wait();
  }
}

bool StageWalk::work_on(Stages& stages, int64_t stage, int thread) {
  const int64_t units = stages.units(stage);
  int64_t done = 0;
  for (int i = 0; i < threads_; ++i) {
    done += drain(stages, stage, units, (thread + i) % threads_, thread);
  }
  if (done == 0 || ended_.fetch_add(done, std::memory_order_acq_rel) + done < units) return false;
  open_after(stages, stage, thread);
  return true;
}

int64_t StageWalk::drain(Stages& stages, int64_t stage, int64_t units, int owner, int thread) {
  const auto tag = static_cast<uint64_t>(stage) << 32;
  const auto end = tag | static_cast<uint64_t>(range_begin(units, owner + 1));
  std::atomic<uint64_t>& next = ranges_[owner].next;
  int64_t done = 0;
  for (uint64_t word = next.load(std::memory_order_acquire); word >= tag && word < end;) {
    if (!next.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) continue;
    stages.run(stage, static_cast<int64_t>(word & 0xffffffffu), thread);
    ++done;
    word = next.load(std::memory_order_acquire);
  }
  return done;
}

void StageWalk::open_after(Stages& stages, int64_t stage, int thread) {
  const int64_t count = stages.count();
  int64_t units = 0;
  for (++stage; stage < count; ++stage) {
    units = stages.units(stage);
    if (units > 1) break;
    if (units == 1) stages.run(stage, 0, thread);
  }
  ended_.store(0, std::memory_order_relaxed);
  const auto tag = static_cast<uint64_t>(stage) << 32;
  for (int owner = 0; owner < threads_; ++owner) {
    const auto begin = static_cast<uint64_t>(range_begin(units, owner));
    ranges_[owner].next.store(tag | begin, std::memory_order_release);
  }
  current_.store(stage, std::memory_order_release);
}

}  // namespace fewbit
