// Persistent threads that help a caller with one job at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fewbit {

// Tells the core that this is a wait, for some tens of nanoseconds.
void pause_briefly();

// Waits for a condition of another thread: pauses at first, then gives the core away each time, so
// that a thread which holds the missing piece gets to run on a busy machine.
class Spin {
 public:
  void wait() {
    if (++tries_ < kPauses) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
  int64_t tries() const { return tries_; }

 private:
  static constexpr int64_t kPauses = 1 << 7;  // some microseconds
  int64_t tries_ = 0;
};

class ThreadPool {
 public:
  // `threads` counts the caller: threads - 1 are started. They wait without using a core once a
  // fraction of a millisecond has passed without a job. Throws std::system_error, with none left
  // running, where the system gives no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls job(0) here and job(t) on every worker t that wakes in time. A worker that comes late
  // finds the door closed: `job(0)` alone must be able to finish all the work, so a descheduled
  // worker that holds none of it delays nobody. Returns when all that entered have left. Callers
  // on several threads take turns. In the child of a fork, which has no workers, job(0) is alone.
  void run(const std::function<void(int thread)>& job);

 private:
  void work(int thread);
  void stop();
  bool forked() const;
  uint32_t wait_for_generation_after(uint32_t seen);
  bool enter(uint32_t generation);

  // [63:32] generation, [31] open, [30:0] workers inside.
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInside = kOpen - 1;

  std::mutex turn_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint64_t> door_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stopping_{false};
  const int64_t process_;  // that has the workers
  std::vector<std::thread> workers_;
};

}  // namespace fewbit
