#include "executor/executor.h"

#include <algorithm>
#include <stdexcept>

#include "executor/step_run.h"

namespace fewbit {

namespace {

// Rows that pass through the layers together: enough to read weights seldom, few enough that the
// workspace stays near the caches.
constexpr int64_t kChunkRows = 256;

// The same beside another executor, which has read the prompts.
constexpr int64_t kFewRows = 64;

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
    : Executor(std::move(program), kChunkRows, nullptr, std::move(pool), isa) {
  store_ = std::make_shared<KvStore>(program_, pages);
}

Executor::Executor(Program program, const Executor& other)
    : Executor(std::move(program), kFewRows, other.store_, other.pool_, other.isa_) {
  store_->require_fit(program_);
}

Executor::Executor(Program program, int64_t chunk_rows, std::shared_ptr<KvStore> store,
                   std::shared_ptr<ThreadPool> pool, Isa isa)
    : program_(std::move(program)),
      plan_(make_plan(program_, chunk_rows)),
      store_(std::move(store)),
      pool_(std::move(pool)),
      walk_(*pool_),
      isa_(isa),
      linear_(linear_kernels(isa)),
      weight_only_(weight_only_kernels(isa)),
      split_(split_kernels(isa)),
      ops_(op_kernels(isa)),
      workspace_(plan_.workspace_bytes),
      step_buffers_(plan_.values.size()),
      step_rows_at_(plan_.values.size()) {
  const auto cut = [](const Value& value) { return value.form == Form::kPieces; };
  if (!split_ && std::any_of(plan_.values.begin(), plan_.values.end(), cut)) {
    throw std::invalid_argument("this instruction set does not multiply by pieces of floats.");
  }
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

void Executor::check_bound(const StepInput& step) const {
  const auto is_bound = [&](int buffer) {
    return std::any_of(step.bound.begin(), step.bound.end(),
                       [&](const BoundRows& bound) { return bound.buffer == buffer; });
  };
  for (const BoundRows& bound : step.bound) {
    const bool known =
        bound.buffer >= 0 && bound.buffer < static_cast<int>(program_.buffers.size());
    if (!known || plan_.values[bound.buffer].place != Place::kStep) {
      throw std::invalid_argument("rows are bound to a buffer that is neither given nor tapped.");
    }
  }
  for (const Op& op : program_.ops) {
    if (std::holds_alternative<GivenOp>(op.what) && !is_bound(op.out)) {
      throw std::invalid_argument("a buffer that must be given is not.");
    }
  }
}

void Executor::grow(const StepInput& step) {
  step_rows_ = {0, 0};  // where there is no memory for more
  std::fill(step_rows_at_.begin(), step_rows_at_.end(), nullptr);
  for (const BoundRows& bound : step.bound) step_rows_at_[bound.buffer] = bound.rows;
  const std::array<int64_t, 2> step_rows{step.rows, step.wanted_count};
  for (size_t i = 0; i < plan_.values.size(); ++i) {
    const Value& value = plan_.values[i];
    if (value.place != Place::kStep) continue;
    const size_t bytes = sizeof(float) * step_rows[static_cast<int>(value.domain)] * value.width;
    std::shared_ptr<Bytes>& buffer = step_buffers_[i];
    if (step_rows_at_[i] || !buffer || buffer->size() < bytes) {
      buffer.reset();  // before it is made anew: both at once may be too much
    }
    if (step_rows_at_[i]) continue;
    if (!buffer) buffer = std::make_shared<Bytes>(bytes);
    step_rows_at_[i] = reinterpret_cast<float*>(buffer->data());
  }
  step_rows_ = step_rows;
}

Rows Executor::step(const StepInput& step) {
  std::lock_guard<std::mutex> turn(store_->turn());
  check_step(step, program_, store_->pages());
  check_bound(step);
  grow(step);
  StepRun run(*this, step);
  walk_.run(run);
  return program_.logits < 0 ? Rows{} : rows_of(program_.logits);
}

Rows Executor::tap(int buffer) const {
  std::lock_guard<std::mutex> turn(store_->turn());
  return rows_of(buffer);
}

Rows Executor::rows_of(int buffer) const {
  const Value& value = plan_.values.at(buffer);
  if (buffer < 0 || value.place != Place::kStep || value.form != Form::kFloats) {
    throw std::invalid_argument("the buffer is not tapped.");
  }
  const std::shared_ptr<Bytes>& memory = step_buffers_[buffer];
  const int64_t rows = step_rows_[static_cast<int>(value.domain)];
  if (!memory && rows > 0) {
    throw std::invalid_argument("the step wrote the buffer to the caller's memory.");
  }
  return {memory ? reinterpret_cast<const float*>(memory->data()) : nullptr, rows, value.width,
          memory};
}

}  // namespace fewbit
