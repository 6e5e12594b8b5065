// The refinement of refine.h over S.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/simd.h"
#include "solvers/refine.h"
#include "solvers/refine_scales_impl.h"
#include "solvers/refine_span_impl.h"
#include "solvers/rounding_impl.h"

namespace fewbit {

// A tile of rows.
template <class S>
class Refinement {
 public:
  static void refine(const RefineTask& task, const float* sums, const RefineMemory& memory,
                     const StoredGrid& grid, double* changes, int64_t row) {
    Refinement tile(task, memory);
    const int64_t rows = std::min(kRoundingRows, task.rows - row);
    tile.take(grid, row, rows);
    for (int round = 0; round < task.rounds; ++round)
      tile.each_span([&](const Span<S>& span) { tile.improve(span, sums); });
    tile.give(grid, row, rows, changes);
  }

 private:
  using F32 = typename S::F32;
  // A change under so much of the errors' squares, times the root of the columns, may be rounding:
  // a slope is a chain of as many float32 sums, whose errors add up like the root of their number,
  // each of them 2^-24 of about what the errors' squares bound (Cauchy and Schwarz).
  static constexpr double kRounding = 0x1p-22;
  // Columns whose changes stay in the first cache until the columns behind them take them.
  static constexpr int64_t kRun = 32;

  Refinement(const RefineTask& task, const RefineMemory& memory) : task_(task), memory_(memory) {}

  template <class Job>
  void each_span(const Job& job) const {
    for (int64_t first = 0; first < task_.columns; first += task_.span)
      job(Span<S>{task_, memory_, first, std::min(first + task_.span, task_.columns)});
  }

  template <class From, class To>
  static void to_lanes(const From* from, int64_t width, int64_t row, int64_t rows, To* to) {
    for (int64_t j = 0; j < width; ++j)
      for (int64_t i = from ? rows : 0; i < kRoundingRows; ++i) to[j * kRoundingRows + i] = To{};
    if (from == nullptr) return;
    for (int64_t first = 0; first < width; first += kLanes) {
      const int64_t last = std::min<int64_t>(first + kLanes, width);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = first; j < last; ++j)
          to[j * kRoundingRows + i] = static_cast<To>(from[(row + i) * width + j]);
    }
  }

  template <class From, class To>
  static void from_lane(const From* from, int64_t width, int64_t row, int64_t lane, To* to) {
    if (to == nullptr) return;
    for (int64_t j = 0; j < width; ++j)
      to[row * width + j] = static_cast<To>(from[j * kRoundingRows + lane]);
  }

  void take(const StoredGrid& grid, int64_t row, int64_t rows) {
    const int64_t columns = task_.columns;
    const int64_t blocks = columns / task_.shape.block, groups = columns / task_.shape.group;
    to_lanes(task_.weights, columns, row, rows, memory_.weights);
    to_lanes(grid.codes, columns, row, rows, memory_.codes);
    to_lanes(grid.scale, blocks, row, rows, memory_.grid.scale);
    to_lanes(grid.offset, blocks, row, rows, memory_.grid.offset);
    to_lanes(grid.steps, groups, row, rows, memory_.grid.steps);
    to_lanes(grid.offset_steps, groups, row, rows, memory_.grid.offset_steps);
    each_span([&](const Span<S>& span) { begin(span); });
  }

  // The errors of a span, and what their squares add up to.
  void begin(const Span<S>& span) {
    span.look_up();
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes) {
      F32 squares = S::load(squares_ + lane);
      for (int64_t j = 0; j < span.columns(); ++j) {
        const F32 error = span.error(memory_.now, j, lane);
        S::store(span.errors(j) + lane, error);
        squares = S::fma(S::mul(S::set1(span.curvature(j)), error), error, squares);
      }
      S::store(squares_ + lane, squares);
    }
  }

  void give(const StoredGrid& grid, int64_t row, int64_t rows, double* changes) const {
    const int64_t columns = task_.columns;
    const int64_t blocks = columns / task_.shape.block, groups = columns / task_.shape.group;
    const double least = -kRounding * std::sqrt(static_cast<double>(columns));
    for (int64_t lane = 0; lane < rows; ++lane) {
      const bool gains = changes_[lane] < least * static_cast<double>(squares_[lane]);
      changes[row + lane] = gains ? changes_[lane] : 0;
      if (!gains) continue;
      from_lane(memory_.codes, columns, row + lane, lane, grid.codes);
      from_lane(memory_.grid.scale, blocks, row + lane, lane, grid.scale);
      from_lane(memory_.grid.offset, blocks, row + lane, lane, grid.offset);
      from_lane(memory_.grid.steps, groups, row + lane, lane, grid.steps);
      from_lane(memory_.grid.offset_steps, groups, row + lane, lane, grid.offset_steps);
    }
  }

  void improve(const Span<S>& span, const float* sums) {
    float changes[kRoundingRows] = {};
    span.look_up();
    span.find_slopes();
    SpanScales<S>(span, sums).improve(changes);
    improve_codes(span, changes);
    for (int64_t lane = 0; lane < kRoundingRows; ++lane) changes_[lane] += changes[lane];
  }

  // Coordinate descent over a span's columns in ascending order.
  void improve_codes(const Span<S>& span, float* changes) const {
    float moves[kRun * kRoundingRows];
    for (int64_t start = 0; start < span.columns(); start += kRun) {
      const int64_t stop = std::min(start + kRun, span.columns());
      const float* factor = span.corner() + start;
      for (int64_t j = start; j < stop; ++j) {
        Rounding<S>::template multiply_rows<1>(factor + j * task_.columns, task_.columns, moves,
                                               span.slopes(j), j - start);
        improve_code(span, j, moves + (j - start) * kRoundingRows, changes);
      }
      Rounding<S>::advance(factor, task_.columns, moves, span.slopes(stop), stop, span.columns(), 0,
                           stop - start);
    }
  }

  // Gives a column the level nearest to the least loss; its error moves by `moves` [64].
  void improve_code(const Span<S>& span, int64_t column, float* moves, float* changes) const {
    const F32 curvature = S::set1(span.curvature(column));
    const F32 inverse = S::set1(1.0f / span.curvature(column));
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes) {
      const int64_t group = span.group_of(column) * kRoundingRows + lane;
      const F32 scale = S::load(memory_.now.scale + group),
                zero = S::load(memory_.now.zero + group);
      const F32 offset = S::load(memory_.now.offset + group);
      const F32 weight = S::load(span.weights(column) + lane);
      const F32 error = S::load(span.errors(column) + lane);
      const F32 slope = span.slope(column, lane);
      const F32 target = S::fma(slope, inverse, S::sub(weight, error));
      const auto none = S::equal(scale, S::zero_f32());
      const F32 steps = S::div(S::sub(target, offset), S::select(none, S::set1(1.0f), scale));
      int32_t codes[kLanes];
      const F32 level = Rounding<S>::take_level(S::select(none, zero, S::add(steps, zero)),
                                                task_.shape.levels, codes);
      for (int i = 0; i < kLanes; ++i)
        span.codes(column)[lane + i] = static_cast<uint8_t>(codes[i]);
      const F32 value = S::add(S::mul(scale, S::sub(level, zero)), offset);
      const F32 now = S::sub(weight, value), move = S::sub(now, error);
      S::store(span.errors(column) + lane, now);
      S::store(moves + lane, move);
      const F32 change = S::mul(move, S::fma(curvature, move, S::add(slope, slope)));
      S::store(changes + lane, S::add(S::load(changes + lane), change));
    }
  }

  const RefineTask& task_;
  const RefineMemory& memory_;
  float squares_[kRoundingRows] = {};
  double changes_[kRoundingRows] = {};
};

}  // namespace fewbit
