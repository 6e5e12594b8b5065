// Better codes and scales for rows that are quantized already; methods/refine.py says by which
// mathematics.
//
// With errors e = w - q the loss of a row is e H e^T, where H is a Gram matrix with something added
// to its diagonal. Sixty-four rows make a tile whose lanes are rows, as in
// rounding.h: what a row gets does not depend on its tile, on threads or on instruction sets.
#pragma once

#include <cstdint>

#include "executor/thread_pool.h"
#include "linear/linear.h"
#include "solvers/grid_shape.h"
#include "solvers/rounding.h"

namespace fewbit {

// A matrix as it is stored, row after row. Null is what the format does not have.
struct StoredGrid {
  uint8_t* codes;         // [columns], positions in the levels
  float* scale;           // [columns / block]
  int16_t* steps;         // [columns / group]
  float* offset;          // [columns / block]
  int16_t* offset_steps;  // [columns / group]
};

struct RefineTask {
  const float* gram;   // [columns][columns]
  const float* added;  // [columns], to its diagonal
  int64_t columns;
  const float* weights;  // [rows][columns]
  int64_t rows;
  GridShape shape;
  int64_t span;  // columns whose scales are solved for together: whole blocks
  int rounds;    // over all columns
};

// Improves the rows that gain more than rounding errors of float32 could feign, leaves the others
// as they are, and writes by how much each row's loss changed (0 where it was left) to [rows].
void refine_rows(const RefineTask& task, const StoredGrid& grid, double* changes, Isa isa,
                 ThreadPool& pool);

// What parts of a grid come to, [groups][64] each.
struct LaneScales {
  float *scale, *offset, *zero;
};

// What one thread works in.
struct RefineMemory {
  uint8_t* codes;           // [columns][64]
  float *weights, *errors;  // [columns][64]
  LaneGrid grid;            // of all columns
  // Of a span of columns:
  LaneGrid tried;
  LaneScales now, then;                       // of `grid` and of `tried`
  float *slopes, *levels, *moves, *products;  // [span][64]
  float* matrix;                              // [unknowns][unknowns][64]
  float *right, *solution, *roots;            // [unknowns][64]
};

}  // namespace fewbit
