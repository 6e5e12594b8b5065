// Scales by search for a block of columns whose scales have two levels, or whose levels are a
// table: formats/grid/search.py and second_level.py for 64 rows at once.
#pragma once

#include <cstdint>

#include "solvers/grid_shape.h"

namespace fewbit {

// `shape`: scales stored in 16 bits, without zero points; with one level without offsets.
struct BlockTask {
  const GridShape& shape;
  const float* importance;  // [block], above zero
  const int32_t* places;    // [block], where a column lies among the values
};

}  // namespace fewbit
