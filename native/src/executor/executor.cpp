#include "executor/executor.h"

#include <algorithm>
#include <stdexcept>

#include "executor/step_run.h"

namespace fewbit {

namespace {

// Rows that pass through the layers together: enough to read weights seldom, few enough that the
// workspace stays near the caches.
constexpr int64_t kChunkRows = 256;

int64_t widest_head(const Program& program) {
  int64_t widest = 0;
  for (const Op& op : program.ops) {
    const auto* attention = std::get_if<AttentionOp>(&op.what);
    if (attention) widest = std::max(widest, attention->head_dim);
  }
  return widest;
}

}  // namespace

Executor::Executor(Program program, int64_t pages, std::shared_ptr<ThreadPool> pool, Isa isa)
    : program_(std::move(program)),
      plan_(make_plan(program_, kChunkRows)),
      store_(program_, pages),
      pool_(std::move(pool)),
      walk_(*pool_),
      linear_(linear_kernels(isa)),
      ops_(op_kernels(isa)),
      workspace_(plan_.workspace_bytes),
      step_buffers_(plan_.values.size()) {
  const size_t floats = plan_.scratch_floats + attend_scratch_floats(widest_head(program_));
  for (int thread = 0; thread < pool_->size(); ++thread) {
    scratch_.emplace_back(floats * sizeof(float));
  }
}

const std::vector<StageCut>& Executor::cuts(Domain domain, int64_t rows) {
  const bool full = rows == plan_.chunk_rows;
  Cuts& cuts = cuts_[static_cast<int>(domain)][full];
  if (cuts.rows != rows) {
    const std::vector<Stage>& stages = domain == Domain::kRows ? plan_.body : plan_.tail;
    cuts = {rows, cut_stages(stages, rows, pool_->size())};
  }
  return cuts.stages;
}

void Executor::grow(int64_t rows, int64_t wanted) {
  step_rows_ = {rows, wanted};
  for (size_t i = 0; i < plan_.values.size(); ++i) {
    const Value& value = plan_.values[i];
    if (value.place != Place::kStep) continue;
    const int64_t count = step_rows_[static_cast<int>(value.domain)];
    const size_t bytes = sizeof(float) * count * value.width;
    if (step_buffers_[i].size() < bytes) step_buffers_[i] = Bytes(bytes);
  }
}

Rows Executor::step(const StepInput& step) {
  std::lock_guard<std::mutex> turn(turn_);
  check_step(step, program_, store_.pages());
  grow(step.rows, step.wanted_count);
  StepRun run(*this, step);
  walk_.run(run);
  return tap(program_.logits);
}

Rows Executor::tap(int buffer) const {
  const Value& value = plan_.values.at(buffer);
  if (buffer < 0 || value.place != Place::kStep || value.form != Form::kFloats) {
    throw std::invalid_argument("the buffer is not tapped.");
  }
  return {reinterpret_cast<const float*>(step_buffers_[buffer].data()),
          step_rows_[static_cast<int>(value.domain)], value.width};
}

}  // namespace fewbit
