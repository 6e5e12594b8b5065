// The table of one instruction set; each ops_<set>.cpp instantiates it once.
#pragma once

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/ops.h"

namespace fewbit {

// Registers of the attention kernels: queries times tiles of accumulators.
template <int Queries, int Tiles>
struct RegisterShape {
  static constexpr int kQueries = Queries;
  static constexpr int kTiles = Tiles;
};

template <class S, class Shape>
constexpr OpKernels make_op_kernels() {
  return {
      rms_norm<S>,
      rope<S>,
      scale<S>,
      add<S>,
      silu_gate<S>,
      gelu_gate<S>,
      softcap<S>,
      merge_partials<S>,
      {store_key<S, StoredF16<S>>, store_value<S, StoredF16<S>>, attend<S, StoredF16<S>, Shape>},
      {store_key<S, StoredF32<S>>, store_value<S, StoredF32<S>>, attend<S, StoredF32<S>, Shape>},
  };
}

}  // namespace fewbit
