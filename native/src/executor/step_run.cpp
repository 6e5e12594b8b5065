#include "executor/step_run.h"

#include <algorithm>

namespace fewbit {

namespace {

// Runs [begin, end) of the row block that starts at row `start`, as activations of their own.
Activations runs_of_block(const Activations& all, int64_t start, int64_t begin, int64_t end) {
  const int64_t slot = all.slot(start, begin);
  return {std::min<int64_t>(kRowBlock, all.rows - start),
          (end - begin) * kGroup,
          nullptr,
          all.q + kGroup * slot,
          all.scales + slot,
          all.weighted + slot,
          all.centre + slot,
          all.centre16 + 2 * slot};
}

// Calls f(values, begin, end) for what a matrix reads in columns [begin, end): `x`, or where there
// is an order its values gathered a piece at a time.
template <class F>
void in_order(const std::vector<int32_t>* order, const float* x, int64_t begin, int64_t end, F f) {
  if (!order) return f(x, begin, end);
  constexpr int64_t kPiece = 16 * kGroup;
  alignas(64) float gathered[kPiece];
  for (int64_t from = begin; from < end; from += kPiece) {
    const int64_t to = std::min(from + kPiece, end);
    for (int64_t column = from; column < to; ++column)
      gathered[column - from] = x[(*order)[column]];
    f(gathered, from, to);
  }
}

}  // namespace

StepRun::StepRun(Executor& executor, const StepInput& step)
    : executor_(executor),
      step_(step),
      stored_(executor.ops_.store[static_cast<int>(executor.program_.cache)]) {
  span_of_.reserve(step.rows);
  for (size_t i = 0; i < step.spans.size(); ++i) {
    span_of_.insert(span_of_.end(), step.spans[i].count, static_cast<int32_t>(i));
  }
  fork_pages();
  sort_wanted();
  add_chunks(Domain::kRows, step.rows, executor.plan_.body.size());
  reserve_partials();
  body_stages_ = static_cast<int64_t>(chunks_.size() * executor.plan_.body.size());
  const size_t body_chunks = chunks_.size();
  add_chunks(Domain::kWanted, step.wanted_count, executor.plan_.tail.size());
  tail_stages_ = static_cast<int64_t>((chunks_.size() - body_chunks) * executor.plan_.tail.size());
}

void StepRun::sort_wanted() {
  wanted_.reserve(step_.wanted_count);
  for (int64_t i = 0; i < step_.wanted_count; ++i) {
    wanted_.push_back({step_.wanted[i], static_cast<int32_t>(i)});
  }
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return a.row != b.row ? a.row < b.row : a.index < b.index;
  });
}

void StepRun::add_chunks(Domain domain, int64_t rows, size_t stages) {
  if (stages == 0) return;
  const int64_t most = executor_.plan_.chunk_rows;
  for (int64_t begin = 0; begin < rows; begin += most) {
    const int64_t count = std::min(most, rows - begin);
    chunks_.push_back({domain, begin, count, &executor_.cuts(domain, count)});
  }
}

const StepRun::Chunk& StepRun::chunk_of(int64_t stage, int64_t& local) const {
  const auto body = static_cast<int64_t>(executor_.plan_.body.size());
  const auto tail = static_cast<int64_t>(executor_.plan_.tail.size());
  if (stage < body_stages_) {
    local = stage % body;
    return chunks_[stage / body];
  }
  stage -= body_stages_;
  local = stage % tail;
  return chunks_[body_stages_ / body + stage / tail];
}

int64_t StepRun::units(int64_t stage) const {
  int64_t local;
  const Chunk& chunk = chunk_of(stage, local);
  return (*chunk.cuts)[local].units;
}

void StepRun::run(int64_t stage, int64_t unit, int thread) {
  int64_t local;
  const Chunk& chunk = chunk_of(stage, local);
  const bool body = chunk.domain == Domain::kRows;
  const Stage& at = body ? executor_.plan_.body[local] : executor_.plan_.tail[local];
  Region region = region_of(at, (*chunk.cuts)[local], chunk.rows, unit);
  region.row_begin += chunk.begin;
  region.row_end += chunk.begin;
  for (const Step& step : region.chain->steps) {
    const Task task{chunk, region, step.out, thread};
    std::visit([&](const auto& what) { run(what, task); }, step.what);
  }
}

StepRun::View StepRun::view(int value, const Task& task) const {
  const Value& at = executor_.plan_.values[value];
  switch (at.place) {
    case Place::kUnit: {
      auto* scratch = reinterpret_cast<float*>(executor_.scratch_[task.thread].data());
      const Region& region = task.region;
      return {scratch + at.offset, region.column_end - region.column_begin, region.row_begin,
              region.column_begin};
    }
    case Place::kChunk: {
      auto* data = reinterpret_cast<float*>(executor_.workspace_.data() + at.offset);
      return {data, at.width, task.chunk.begin, 0};
    }
    case Place::kStep:
      break;
  }
  return {executor_.step_rows_at_[value], at.width, 0, 0};
}

Activations StepRun::activations(int value, const Task& task) const {
  const Value& at = executor_.plan_.values[value];
  return activations_in(executor_.workspace_.data() + at.offset, rows_of(value, task), at.width,
                        nullptr);
}

BfloatActivations StepRun::bfloats(int value, const Task& task) const {
  const Value& at = executor_.plan_.values[value];
  return bfloat_in(executor_.workspace_.data() + at.offset, rows_of(value, task), at.width);
}

SplitActivations StepRun::pieces(int value, const Task& task) const {
  const Value& at = executor_.plan_.values[value];
  return {rows_of(value, task), at.width, executor_.workspace_.data() + at.offset};
}

float* StepRun::attend_scratch(int thread) const {
  return reinterpret_cast<float*>(executor_.scratch_[thread].data()) +
         executor_.plan_.scratch_floats;
}

void StepRun::run(const EmbedOp* op, const Task& task) {
  const View out = view(task.out, task);
  for_rows(task, [&](int64_t row) {
    float* to = out.at(row, 0);
    decode_row(*op->weight, step_.tokens[row], to);
    if (op->scale != 1.0f) executor_.ops_.scale(to, op->scale, op->weight->columns);
  });
}

void StepRun::run(const RopeTableOp* op, const Task& task) {
  const View out = view(task.out, task);
  for_rows(task, [&](int64_t row) {
    rope_table_row(position_of(row), op->frequencies.data(),
                   static_cast<int64_t>(op->frequencies.size()), op->factor, out.at(row, 0));
  });
}

void StepRun::run(const RmsNormOp* op, const Task& task) {
  const View x = view(op->x, task);
  const View out = view(task.out, task);
  for_heads(task, op->width, [&](int64_t row, int64_t column) {
    executor_.ops_.rms_norm(x.at(row, column), op->weight.data(), op->width, op->eps,
                            out.at(row, column));
  });
}

void StepRun::run(const RopeOp* op, const Task& task) {
  const View x = view(op->x, task);
  const View table = view(op->table, task);
  const View out = view(task.out, task);
  for_heads(task, op->head_dim, [&](int64_t row, int64_t column) {
    executor_.ops_.rope(x.at(row, column), table.at(row, 0), op->head_dim, out.at(row, column));
  });
}

void StepRun::run(const HadamardOp* op, const Task& task) {
  const View x = view(op->x, task);
  const View out = view(task.out, task);
  for_heads(task, op->head_dim, [&](int64_t row, int64_t column) {
    executor_.ops_.hadamard(x.at(row, column), op->head_dim, out.at(row, column));
  });
}

void StepRun::run(const GatedOp* op, const Task& task) {
  const View gate = view(op->gate, task);
  const View up = view(op->up, task);
  const View out = view(task.out, task);
  const int64_t first = task.region.column_begin;
  const int64_t columns = task.region.column_end - first;
  const auto kernel =
      op->activation == Activation::kSilu ? executor_.ops_.silu_gate : executor_.ops_.gelu_gate;
  for_rows(task, [&](int64_t row) {
    kernel(gate.at(row, first), up.at(row, first), columns, out.at(row, first));
  });
}

void StepRun::run(const AddOp* op, const Task& task) {
  const View x = view(op->x, task);
  const View y = view(op->y, task);
  const View out = view(task.out, task);
  const int64_t first = task.region.column_begin;
  const int64_t columns = task.region.column_end - first;
  for_rows(task, [&](int64_t row) {
    executor_.ops_.add(x.at(row, first), y.at(row, first), columns, out.at(row, first));
  });
}

void StepRun::run(const SelectRowsOp* op, const Task& task) {
  const View x = view(op->x, task);
  const View out = view(task.out, task);
  const int64_t first = task.region.column_begin;
  const int64_t columns = task.region.column_end - first;
  const auto before = [](const Wanted& wanted, int64_t row) { return wanted.row < row; };
  auto wanted = std::lower_bound(wanted_.begin(), wanted_.end(), task.region.row_begin, before);
  for (; wanted != wanted_.end() && wanted->row < task.region.row_end; ++wanted) {
    std::copy_n(x.at(wanted->row, first), columns, out.at(wanted->index, first));
  }
}

void StepRun::run(const SoftcapOp* op, const Task& task) {
  const View x = view(op->x, task);
  const View out = view(task.out, task);
  const int64_t first = task.region.column_begin;
  const int64_t columns = task.region.column_end - first;
  for_rows(task, [&](int64_t row) {
    executor_.ops_.softcap(x.at(row, first), op->cap, columns, out.at(row, first));
  });
}

void StepRun::run(const QuantizeStep& step, const Task& task) {
  const View x = view(step.x, task);
  const Activations all = activations(task.out, task);
  const int64_t first = task.region.column_begin;
  for_rows(task, [&](int64_t row) {
    quantize_columns(all, step.how, x.at(row, first), row - task.chunk.begin, first,
                     task.region.column_end);
  });
}

void StepRun::quantize_columns(const Activations& all, const Rounding& rounding, const float* x,
                               int64_t row, int64_t begin, int64_t end) const {
  const int64_t in_block = row % kRowBlock;
  const LinearKernels& kernels = executor_.linear_;
  const float scale = rounding.kind == InputRounding::kInt8Row
                          ? kernels.scale_of_row(x, end - begin)
                          : rounding.scale;
  in_order(rounding.order, x, begin, end, [&](const float* values, int64_t from, int64_t to) {
    const Activations part = runs_of_block(all, row - in_block, from / kGroup, to / kGroup);
    if (rounding.kind == InputRounding::kInt8Run) {
      kernels.quantize(values, part, in_block);
    } else {
      kernels.quantize_with(values, part, in_block, scale);
    }
  });
}

void StepRun::run(const RoundStep& step, const Task& task) {
  const View x = view(step.x, task);
  const int64_t first = task.region.column_begin, end = task.region.column_end;
  if (step.how.kind == InputRounding::kSplit) {
    const SplitActivations all = pieces(task.out, task);
    return for_rows(task, [&](int64_t row) {
      executor_.split_->split(x.at(row, first), end - first, all, row - task.chunk.begin, first);
    });
  }
  const BfloatActivations all = bfloats(task.out, task);
  for_rows(task, [&](int64_t row) {
    round_columns(all, step.how, x.at(row, first), row - task.chunk.begin, first, end);
  });
}

void StepRun::round_columns(const BfloatActivations& all, const Rounding& rounding, const float* x,
                            int64_t row, int64_t begin, int64_t end) const {
  in_order(rounding.order, x, begin, end, [&](const float* values, int64_t from, int64_t to) {
    executor_.weight_only_.round(values, to - from, all.values + row * all.columns + from,
                                 all.sums + row * all.halves() + from / (kGroup / 2));
  });
}

void StepRun::run(const IntegerLinearStep& step, const Task& task) {
  multiply(executor_.linear_.multiply, *step.weight, activations(step.activations, task), step.bias,
           task);
}

void StepRun::run(const WeightOnlyLinearStep& step, const Task& task) {
  multiply(executor_.weight_only_.multiply, *step.weight, bfloats(step.activations, task),
           step.bias, task);
}

void StepRun::run(const SplitLinearStep& step, const Task& task) {
  multiply(executor_.split_->multiply, *step.weight, pieces(step.activations, task), step.bias,
           task);
}

void StepRun::run(const FloatLinearStep& step, const Task& task) {
  const View x = view(step.x, task);
  const Activations floats =
      float_activations(x.at(task.chunk.begin, 0), task.chunk.rows, x.stride);
  multiply(executor_.linear_.multiply, *step.weight, floats, step.bias, task);
}

template <class Kernel, class A>
void StepRun::multiply(Kernel kernel, const PackedMatrix& weight, const A& x, const float* bias,
                       const Task& task) const {
  const View out = view(task.out, task);
  const Region& region = task.region;
  // The kernel counts rows from the chunk's first and outputs from the matrix's first.
  float* origin = out.at(task.chunk.begin, 0);
  kernel(weight, region.column_begin / kTileRows, (region.column_end + kTileRows - 1) / kTileRows,
         x, region.row_begin - task.chunk.begin, region.row_end - task.chunk.begin, bias, origin,
         out.stride);
}

int64_t StepRun::position_of(int64_t row) const {
  const Span& span = step_.spans[span_of_[row]];
  return span.position + row - span.start;
}

}  // namespace fewbit
