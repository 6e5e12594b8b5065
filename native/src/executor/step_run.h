// One step as a list of stages: chunks of rows through the body, then wanted rows through the tail.
#pragma once

#include <vector>

#include "executor/executor.h"
#include "executor/mixture.h"

namespace fewbit {

class StepRun final : public Stages {
 public:
  StepRun(Executor& executor, const StepInput& step);

  int64_t count() const override { return body_stages_ + tail_stages_; }
  int64_t units(int64_t stage) const override;
  void run(int64_t stage, int64_t unit, int thread) override;

 private:
  // Rows [begin, begin + rows) of a domain, on their way through all its stages.
  struct Chunk {
    Domain domain;
    int64_t begin;
    int64_t rows;
    const std::vector<StageCut>* cuts;
  };
  // A value's elements around a region: element (row, column) of the step.
  struct View {
    float* data;
    int64_t stride;
    int64_t row, column;  // of data[0]
    float* at(int64_t r, int64_t c) const { return data + (r - row) * stride + (c - column); }
  };
  struct Task {
    const Chunk& chunk;
    Region region;  // rows of the step
    int out;
    int thread;
  };
  struct Wanted {
    int32_t row, index;
  };

  // The blocks of 256 keys that a row reads.
  struct Blocks {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
  };

  void add_chunks(Domain domain, int64_t rows, size_t stages);
  void sort_wanted();
  const Chunk& chunk_of(int64_t stage, int64_t& local) const;

  View view(int value, const Task& task) const;
  Activations activations(int value, const Task& task) const;
  BfloatActivations bfloats(int value, const Task& task) const;
  SplitActivations pieces(int value, const Task& task) const;
  float* attend_scratch(int thread) const;
  // Calls f(row), or f(row, column) for every head of every row, over a task's region.
  template <class F>
  static void for_rows(const Task& task, F f) {
    for (int64_t row = task.region.row_begin; row < task.region.row_end; ++row) f(row);
  }
  template <class F>
  static void for_heads(const Task& task, int64_t head_dim, F f) {
    for_rows(task, [&](int64_t row) {
      for (int64_t column = task.region.column_begin; column < task.region.column_end;
           column += head_dim) {
        f(row, column);
      }
    });
  }

  void run(const EmbedOp* op, const Task& task);
  void run(const RopeTableOp* op, const Task& task);
  void run(const RmsNormOp* op, const Task& task);
  void run(const RopeOp* op, const Task& task);
  void run(const HadamardOp* op, const Task& task);
  void run(const GatedOp* op, const Task& task);
  void run(const AddOp* op, const Task& task);
  void run(const SelectRowsOp* op, const Task& task);
  void run(const SoftcapOp* op, const Task& task);
  void run(const QuantizeStep& step, const Task& task);
  void run(const RoundStep& step, const Task& task);
  void run(const IntegerLinearStep& step, const Task& task);
  void run(const WeightOnlyLinearStep& step, const Task& task);
  void run(const SplitLinearStep& step, const Task& task);
  void run(const FloatLinearStep& step, const Task& task);
  void run(const StoreKeysStep& step, const Task& task);
  void run(const StoreValuesStep& step, const Task& task);
  void run(const AttendStep& step, const Task& task);
  void run(const MergeStep& step, const Task& task);
  void run(const RouteStep& step, const Task& task);
  void run(const GatherStep& step, const Task& task);
  void run(const ExpertsGateStep& step, const Task& task);
  void run(const ExpertsDownStep& step, const Task& task);

  // Round columns [begin, end) of a row into row `row` of the chunk's. x[0] is the first of them,
  // or where the rounding has an order the row's first, of which there are `end`.
  void quantize_columns(const Activations& all, const Rounding& rounding, const float* x,
                        int64_t row, int64_t begin, int64_t end) const;
  void round_columns(const BfloatActivations& all, const Rounding& rounding, const float* x,
                     int64_t row, int64_t begin, int64_t end) const;
  static Activations float_activations(float* values, int64_t rows, int64_t columns) {
    return {rows, columns, values, nullptr, nullptr, nullptr, nullptr, nullptr};
  }
  int64_t rows_of(int value, const Task& task) const {
    return task.chunk.rows * executor_.plan_.values[value].per_row;
  }

  Routes routes(int value, const Task& task) const;
  float* choices(int value) const;
  static Places places_in(const Routes& routes, size_t expert, const Task& task);
  void round_choice(const Rounding& rounding, const float* x, int value, const Task& task,
                    int64_t place, int64_t begin, int64_t end) const;
  void multiply_choices(const PackedMatrix& weight, InputRounding rounding, const ByRounding& x,
                        const Task& task, const Places& places, float* out, int64_t stride) const;
  void run_gate(const ExpertsGateStep& step, const Expert& expert, const Task& task,
                const Places& places) const;

  // `kernel` multiplies a weight by activations of the type it takes.
  template <class Kernel, class A>
  void multiply(Kernel kernel, const PackedMatrix& weight, const A& x, const float* bias,
                const Task& task) const;
  void fork_pages();
  // Calls f(page) with what the pages that a row is written to hold of a key head: the sequence's,
  // and those of the branches that continue it.
  template <class F>
  void for_pages(const AttentionOp& attention, int64_t row, int64_t kv_head, F f) const;
  int64_t position_of(int64_t row) const;
  Blocks blocks_of(const AttentionOp& attention, int64_t row) const;
  float* partials_of(const AttentionOp& attention, const Task& task, int64_t row,
                     int64_t head) const;
  void reserve_partials();
  void attend_rows(const AttentionOp& attention, const Task& task, int64_t kv_head,
                   int64_t row_begin, int64_t row_end, const Blocks* share) const;
  void attend_split(const AttentionOp& attention, const Task& task, int64_t kv_head) const;

  Executor& executor_;
  const StepInput& step_;
  const StoreKernels& stored_;
  std::vector<int32_t> span_of_;                   // by row
  std::vector<std::vector<int32_t>> branches_of_;  // by span; empty where the step has none
  std::vector<Wanted> wanted_;                     // by row, then by index
  std::vector<Chunk> chunks_;                      // of the body, then of the tail
  int64_t most_blocks_ = 1;                        // of any row
  int64_t body_stages_ = 0;                        // times chunks
  int64_t tail_stages_ = 0;
};

}  // namespace fewbit
