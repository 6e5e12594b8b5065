// How a format's values lie on grids (formats/grid/layout.py).
#pragma once

#include <cstdint>

#include "solvers/rounding.h"

namespace fewbit {

enum class ScaleStorage { kF16, kF32, kE8m0 };

enum class OffsetKind {
  kNone,
  kValue,  // a number of each group
  kSteps,  // a unit of the block times an integer of the group, subtracted
  kZero,   // an integer zero point of each group
};

struct StepRange {
  float low, high;
};

// Groups of a block whose steps share a unit, at most.
inline constexpr int64_t kMostSteps = 16;

// A value is scale * (level - zero) + offset.
struct GridShape {
  Levels levels;
  int64_t group;  // columns that share scale and offset
  int64_t block;  // columns that share a unit of scales; equal to `group` with one level of scales
  ScaleStorage storage;
  OffsetKind offset;
  StepRange steps, offset_steps;

  bool two_levels() const { return block > group; }
  bool free_offsets() const { return offset == OffsetKind::kValue || offset == OffsetKind::kSteps; }
};

// Parts of a grid with a row a lane.
struct LaneGrid {
  float *scale, *offset;        // [blocks][64]
  float *steps, *offset_steps;  // [groups][64]
};

}  // namespace fewbit
