// The inner loops of GPTQ and of coordinate descent: columns are rounded one after the other, each
// towards a target that makes up for the errors of other columns.
//
// With errors e = w - q, both aim at  t_j = w_j + sum over k of F_jk e_k.  For GPTQ, F_jk = M_jk /
// M_jj for k before j, where H = M^T M and M is lower triangular; for coordinate descent, F_jk =
// H_jk / H_jj for every k but j. Rows do not know each other, so 64 of them make a tile whose lanes
// are rows, and what a row gets does not depend on its tile, on threads or on instruction sets: a
// target is one chain of fused multiply-adds in ascending k.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

inline constexpr int64_t kRoundingRows = 64;

// The values that a column may take: scale * level + offset.
struct Levels {
  const float* values;     // ascending, `count` of them
  const float* midpoints;  // between neighbours, count - 1; null where levels are integers in a row
  int64_t count;           // at most 256
};

// One tile: matrices [columns][64].
struct RoundingTile {
  const float* weights;  // all columns
  float* errors;         // all columns; those rounded are rewritten
  float* targets;        // of a span of columns alone; holds what columns outside it gave
  uint8_t* codes;        // all columns; positions in Levels
  const float* scales;   // [groups][64], of the columns to be rounded
  const float* offsets;  // [groups][64], or null for none
};

// A group of columns whose levels are the integers low..high.
struct ScaleTask {
  int64_t columns;
  const float* importance;  // [columns], above zero
  float low;
  float high;
  bool shifts;  // whether values have an offset too; without one, levels reach further down than up
};

struct BlockTask;     // block_search.h
struct LaneGrid;      // grid_shape.h
struct RefineTask;    // refine.h
struct RefineMemory;  // refine.h
struct StoredGrid;    // refine.h

struct RoundingKernels {
  // targets[j - first] += sum over k in [from, to) of factor[j][k] errors[k], for j in
  // [first, last).
  void (*advance)(const float* factor, int64_t columns, const float* errors, float* targets,
                  int64_t first, int64_t last, int64_t from, int64_t to);

  // Rounds the columns [first, last) in ascending order; `targets` spans [origin, end) around them,
  // and `groups` [last - first] says whose scale a column has. What changes in an error is carried
  // to the targets of the later columns of the span, so errors that are in the targets already are
  // corrected, not counted twice.
  void (*round)(const RoundingTile& tile, const float* factor, int64_t columns, int64_t origin,
                int64_t end, int64_t first, int64_t last, const int32_t* groups,
                const Levels& levels);

  // The scales and offsets [64] of least squared error, weighted by importance, of the values
  // [columns][64]: of many starts the one that promises most after a regression on its levels
  // (the search of formats/grid/search.py, whose results it equals but for rounding).
  void (*search)(const ScaleTask& task, const float* values, float* scales, float* offsets);

  // The grid of least squared error of a block of the values [columns][64] (block_search.h).
  void (*search_block)(const BlockTask& task, const float* values, const LaneGrid& found);

  // Refines the tile of rows that begins at `row` (refine.h). `sums` are, for each column k and
  // each group h of its span, the sums of H_kj over the columns j of h; null unless offsets are
  // free.
  void (*refine)(const RefineTask& task, const float* sums, const RefineMemory& memory,
                 const StoredGrid& grid, double* changes, int64_t row);
};

const RoundingKernels& rounding_kernels(Isa isa);

// The best instruction set of this CPU that they are written for.
Isa best_rounding_isa();

}  // namespace fewbit
