// Runs steps of one Program over a KV store, its own or that of the executor it was made beside.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "executor/cut.h"
#include "executor/kv_store.h"
#include "executor/memory.h"
#include "executor/plan.h"
#include "executor/program.h"
#include "executor/stage_walk.h"
#include "executor/step.h"
#include "executor/thread_pool.h"
#include "linear/split.h"
#include "ops/ops.h"

namespace fewbit {

// Rows of one buffer; element (r, c) is data[r * width + c]. The next step may write over them.
struct Rows {
  const float* data;
  int64_t rows, width;
  std::shared_ptr<const void> memory;
};

class Executor {
 public:
  // Throws std::invalid_argument where the program cannot run.
  Executor(Program program, int64_t pages, std::shared_ptr<ThreadPool> pool, Isa isa);
  // Shares store, threads and instruction set with `other`, and is made for steps of a few rows. A
  // step of either takes its turn, and reads what the other wrote.
  Executor(Program program, const Executor& other);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Checks the step and runs it; throws std::invalid_argument before anything ran. The logits stay
  // until the next step. Callers on several threads take turns.
  Rows step(const StepInput& step);

  // A tapped buffer's rows in the last step: one a row, or one a wanted row behind SelectRows.
  // Throws std::invalid_argument where the step wrote them to the caller's memory.
  Rows tap(int buffer) const;

  const Program& program() const { return program_; }
  int64_t pages() const { return store_->pages(); }
  size_t store_bytes() const { return store_->bytes(); }
  const KvStore& store() const { return *store_; }
  size_t workspace_bytes() const { return workspace_.size(); }

 private:
  friend class StepRun;

  Executor(Program program, int64_t chunk_rows, std::shared_ptr<KvStore> store,
           std::shared_ptr<ThreadPool> pool, Isa isa);

  // Cuts for the numbers of rows met last: full chunks, and the rest.
  struct Cuts {
    int64_t rows = -1;
    std::vector<StageCut> stages;
  };
  const std::vector<StageCut>& cuts(Domain domain, int64_t rows);
  void check_bound(const StepInput& step) const;
  void grow(const StepInput& step);
  Rows rows_of(int buffer) const;

  Program program_;
  Plan plan_;
  std::shared_ptr<KvStore> store_;
  std::shared_ptr<ThreadPool> pool_;
  StageWalk walk_;
  Isa isa_;
  const LinearKernels& linear_;
  const WeightOnlyKernels& weight_only_;
  const SplitKernels* split_;  // null where the instruction set has none
  const OpKernels& ops_;
  Bytes workspace_;
  std::vector<Bytes> scratch_;  // by thread
  // By value: those that hold all rows of a step; null until there was one.
  std::vector<std::shared_ptr<Bytes>> step_buffers_;
  std::vector<float*> step_rows_at_;  // by value: its bytes there, or the caller's
  Bytes partials_;                    // blocks of a row's attention that several units computed
  std::array<std::array<Cuts, 2>, 2> cuts_;
  std::array<int64_t, 2> step_rows_{};  // by domain, of the last step
};

}  // namespace fewbit
