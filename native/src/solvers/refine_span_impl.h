// A span of columns of a tile of rows that is refined (refine.h), over S.
#pragma once

#include <cstring>

#include "simd/simd.h"
#include "solvers/refine.h"
#include "solvers/refine_grid_impl.h"
#include "solvers/rounding_impl.h"

namespace fewbit {

// Columns are counted from the span's first; a lane is the first of 16.
template <class S>
struct Span {
  using F32 = typename S::F32;

  const RefineTask& task;
  const RefineMemory& memory;
  int64_t first, last;

  int64_t columns() const { return last - first; }
  int64_t count() const { return columns() / task.shape.group; }
  int64_t group_of(int64_t column) const { return column / task.shape.group; }
  // H of the span's columns: its first element, rows `task.columns` apart, the diagonal raw.
  const float* corner() const { return task.gram + first * (task.columns + 1); }
  float added(int64_t column) const { return task.added[first + column]; }
  float curvature(int64_t column) const {
    return corner()[column * (task.columns + 1)] + added(column);
  }

  const float* weights(int64_t column) const {
    return memory.weights + (first + column) * kRoundingRows;
  }
  float* errors(int64_t column) const { return memory.errors + (first + column) * kRoundingRows; }
  uint8_t* codes(int64_t column) const { return memory.codes + (first + column) * kRoundingRows; }
  float* slopes(int64_t column) const { return memory.slopes + column * kRoundingRows; }
  float* levels(int64_t column) const { return memory.levels + column * kRoundingRows; }

  LaneGrid grid() const {
    const int64_t block = first / task.shape.block * kRoundingRows;
    const int64_t group = first / task.shape.group * kRoundingRows;
    const LaneGrid& all = memory.grid;
    return {all.scale + block, all.offset + block, all.steps + group, all.offset_steps + group};
  }

  // Reads what the grid's scales come to, and the codes' levels less the zero points.
  void look_up() const {
    const GridLanes<S> lanes{task.shape};
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes) {
      lanes.effective(grid(), memory.now, count(), lane);
      for (int64_t j = 0; j < columns(); ++j) {
        const F32 zero = S::load(memory.now.zero + group_of(j) * kRoundingRows + lane);
        S::store(levels(j) + lane, S::sub(level(codes(j) + lane), zero));
      }
    }
  }

  F32 level(const uint8_t* codes) const {
    const Levels& levels = task.shape.levels;
    if (levels.midpoints == nullptr)
      return S::add(S::convert(S::load_u8_i32(codes)), S::set1(levels.values[0]));
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = levels.values[codes[i]];
    return S::load(lanes);
  }

  // w - q with these scales and the levels looked up.
  F32 error(const LaneScales& scales, int64_t column, int64_t lane) const {
    const int64_t group = group_of(column) * kRoundingRows + lane;
    const F32 product = S::mul(S::load(scales.scale + group), S::load(levels(column) + lane));
    return S::sub(S::load(weights(column) + lane), S::add(product, S::load(scales.offset + group)));
  }

  // Fills the slopes with what all columns' errors give: H e but for what is added to the diagonal.
  void find_slopes() const {
    std::memset(memory.slopes, 0, static_cast<size_t>(columns() * kRoundingRows) * sizeof(float));
    Rounding<S>::advance(task.gram, task.columns, memory.errors, memory.slopes, first, last, 0,
                         task.columns);
  }

  // H e of a column: half of how the loss grows with its error.
  F32 slope(int64_t column, int64_t lane) const {
    return S::fma(S::set1(added(column)), S::load(errors(column) + lane),
                  S::load(slopes(column) + lane));
  }
};

}  // namespace fewbit
