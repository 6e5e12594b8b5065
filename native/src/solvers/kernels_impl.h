// The solvers' loops over S; a file per instruction set instantiates them.
#pragma once

#include "solvers/block_search_impl.h"
#include "solvers/refine_impl.h"
#include "solvers/rounding_impl.h"
#include "solvers/search_impl.h"

namespace fewbit {

template <class S>
constexpr RoundingKernels make_rounding_kernels() {
  return {&Rounding<S>::advance, &Rounding<S>::round, &ScaleSearch<S>::search,
          &BlockSearch<S>::search, &Refinement<S>::refine};
}

}  // namespace fewbit
