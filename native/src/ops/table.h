// The table of one instruction set; each ops_<set>.cpp instantiates it once.
#pragma once

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/hadamard.h"
#include "ops/mixture.h"
#include "ops/ops.h"

namespace fewbit {

// Registers of the attention kernels: queries times tiles of accumulators.
template <int Queries, int Tiles>
struct RegisterShape {
  static constexpr int kQueries = Queries;
  static constexpr int kTiles = Tiles;
};

template <class S, class Stored, class Shape>
constexpr StoreKernels make_store_kernels() {
  return {store_key<S, Stored>, store_value<S, Stored>, attend<S, Stored, Shape>};
}

// Values of an integer store come two tiles at a time, so IntegerShape has an even number.
template <class S, class Shape, class IntegerShape>
constexpr OpKernels make_op_kernels() {
  return {
      rms_norm<S>,
      rope<S>,
      hadamard<S>,
      scale<S>,
      add<S>,
      silu_gate<S>,
      gelu_gate<S>,
      softcap<S>,
      route<S>,
      add_scaled<S>,
      merge_partials<S>,
      {make_store_kernels<S, StoredF32<S>, Shape>(), make_store_kernels<S, StoredF16<S>, Shape>(),
       make_store_kernels<S, StoredBf16<S>, Shape>(),
       make_store_kernels<S, StoredInt8<S>, IntegerShape>(),
       make_store_kernels<S, StoredInt4<S>, IntegerShape>()},
  };
}

}  // namespace fewbit
