#include "solvers/factor.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "executor/memory.h"
#include "executor/stage_walk.h"
#include "gram/gram.h"

namespace fewbit {

namespace {

constexpr int64_t kWide = kPanelColumns;
// Rows that are summed before the sum is added: two factors of so many stay in the first cache, and
// a sum of thousands is rounded to as many digits as one of 128.
constexpr int64_t kDepth = 128;
// Rows of a panel that are eliminated one by one; those behind them are summed as panels are.
constexpr int64_t kFew = 16;

// The lower triangle in chunks of 64 columns, each the rows from its first column on: [rows][64].
// Where a row is not eliminated yet it holds -H plus what is summed so far.
class Chunks {
 public:
  explicit Chunks(int64_t columns)
      : columns_(columns),
        count_((columns + kWide - 1) / kWide),
        memory_(sizeof(float) * static_cast<size_t>(first_row(count_))) {}

  int64_t count() const { return count_; }
  int64_t first(int64_t chunk) const { return chunk * kWide; }
  int64_t end(int64_t chunk) const { return std::min(first(chunk) + kWide, columns_); }

  // 64 floats of a row, which is not before the chunk's first column.
  float* row(int64_t chunk, int64_t row) const {
    return reinterpret_cast<float*>(memory_.data()) + first_row(chunk) +
           (row - first(chunk)) * kWide;
  }

 private:
  int64_t first_row(int64_t chunk) const {
    return kWide * (chunk * columns_ - kWide * chunk * (chunk - 1) / 2);
  }

  int64_t columns_, count_;
  Bytes memory_;
};

const uint8_t* panel(const float* rows) { return reinterpret_cast<const uint8_t*>(rows); }

// Chunk after chunk of rows, from the last on: what the rows behind have is summed for all chunks
// of columns, then the square on the diagonal is eliminated, then the columns before it.
class FactorStages final : public Stages {
 public:
  FactorStages(const Permuted& input, const FactorResult& result, const GramKernels& kernels)
      : input_(input), result_(result), kernels_(kernels), chunks_(input.columns) {}

  bool definite() const { return definite_; }

  int64_t count() const override { return 2 + kSteps * chunks_.count(); }

  int64_t units(int64_t stage) const override {
    if (stage == 0 || stage == count() - 1) return chunks_.count();
    const int64_t chunk = chunk_of(stage);
    switch (step_of(stage)) {
      case kSum:
        return chunk + 1;
      case kSquare:
        return 1;
      default:
        return chunk;
    }
  }

  void run(int64_t stage, int64_t unit, int) override {
    if (stage == 0) return take(unit);
    if (!definite_) return;
    if (stage == count() - 1) return give(unit);
    const int64_t rows = chunk_of(stage);
    switch (step_of(stage)) {
      case kSum:
        return sum(rows, unit);
      case kSquare:
        return eliminate(rows, rows);
      default:
        return eliminate(rows, unit);
    }
  }

 private:
  enum Step : int64_t { kSum, kSquare, kBefore, kSteps };

  static int64_t step_of(int64_t stage) { return (stage - 1) % kSteps; }
  int64_t chunk_of(int64_t stage) const { return chunks_.count() - 1 - (stage - 1) / kSteps; }

  // Fills a chunk of columns with -H.
  void take(int64_t chunk) {
    const int64_t first = chunks_.first(chunk), wide = chunks_.end(chunk) - first;
    for (int64_t row = first; row < input_.columns; ++row) {
      const float* from = input_.matrix + input_.order[row] * input_.columns;
      float* to = chunks_.row(chunk, row);
      for (int64_t i = 0; i < wide; ++i)
        to[i] =
            static_cast<float>(-static_cast<double>(from[input_.order[first + i]]) / input_.unit);
      std::fill(to + wide, to + kWide, 0.0f);
      if (row < first + wide) to[row - first] = static_cast<float>(-input_.diagonal[row]);
    }
  }

  // Adds to some rows, in a chunk of columns, what all rows behind theirs have.
  void sum(int64_t rows, int64_t chunk) {
    const int64_t first = chunks_.first(rows), end = chunks_.end(rows);
    for (int64_t behind = end; behind < input_.columns; behind += kDepth) {
      const int64_t depth = std::min(kDepth, input_.columns - behind);
      kernels_.multiply(panel(chunks_.row(rows, behind)), panel(chunks_.row(chunk, behind)), depth,
                        end - first, kWide, chunks_.row(chunk, first), kWide);
    }
  }

  // Turns some rows into rows of M, in a chunk of columns: their own (the square) or one before.
  void eliminate(int64_t rows, int64_t chunk) {
    const int64_t first = chunks_.first(rows), end = chunks_.end(rows);
    for (int64_t start = first + (end - first - 1) / kFew * kFew; start >= first; start -= kFew) {
      const int64_t stop = std::min(start + kFew, end);
      if (stop < end) {
        const float* left = chunks_.row(rows, stop) + (start - first);
        kernels_.multiply(panel(left), panel(chunks_.row(chunk, stop)), end - stop, stop - start,
                          kWide, chunks_.row(chunk, start), kWide);
      }
      for (int64_t row = stop - 1; row >= start; --row) {
        float* here = chunks_.row(chunk, row);
        for (int64_t i = row + 1; i < stop; ++i)
          add(chunks_.row(rows, i)[row - first], chunks_.row(chunk, i), here);
        if (!finish(rows, row, here)) return;
      }
    }
  }

  static void add(float factor, const float* from, float* to) {
    for (int64_t k = 0; k < kWide; ++k) to[k] += factor * from[k];
  }

  // Divides a row whose sums are complete by its diagonal, after that itself; false where there is
  // none.
  bool finish(int64_t rows, int64_t row, float* here) {
    const int64_t place = row - chunks_.first(rows);
    float* diagonal = chunks_.row(rows, row) + place;
    if (here + place == diagonal) {
      const float root = std::sqrt(-*diagonal);
      if (!(root > 0) || !std::isfinite(root)) return definite_ = false;
      std::fill(diagonal + 1, here + kWide, 0.0f);
      for (int64_t k = 0; k < place; ++k) here[k] = -here[k] / root;
      *diagonal = root;
      return true;
    }
    for (int64_t k = 0; k < kWide; ++k) here[k] = -here[k] / *diagonal;
    return true;
  }

  // Writes some rows of the result.
  void give(int64_t rows) {
    for (int64_t row = chunks_.first(rows); row < chunks_.end(rows); ++row) {
      const float diagonal = chunks_.row(rows, row)[row - chunks_.first(rows)];
      float* to = result_.feedback + row * input_.columns;
      for (int64_t chunk = 0; chunk <= rows; ++chunk) {
        const float* from = chunks_.row(chunk, row);
        const int64_t wide = chunks_.end(chunk) - chunks_.first(chunk);
        for (int64_t k = 0; k < wide; ++k) *to++ = from[k] / diagonal;
      }
      std::fill(to, result_.feedback + (row + 1) * input_.columns, 0.0f);
      result_.variance[row] = diagonal * diagonal;
    }
  }

  const Permuted& input_;
  const FactorResult& result_;
  const GramKernels& kernels_;
  Chunks chunks_;
  std::atomic<bool> definite_{true};
};

}  // namespace

bool factor_lower(const Permuted& input, const FactorResult& result, Isa isa, ThreadPool& pool) {
  FactorStages stages(input, result, float_gram_kernels(isa));
  StageWalk walk(pool);
  walk.run(stages);
  return stages.definite();
}

}  // namespace fewbit
