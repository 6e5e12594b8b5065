// What the bindings of all linear kernels share: their arrays, and a product in pieces.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "bindings/arguments.h"
#include "linear/repack.h"

namespace fewbit {

using Matrix =
    nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Vector =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using NewMatrix = nanobind::ndarray<nanobind::numpy, float, nanobind::ndim<2>>;

inline void require_shapes(const PackedMatrix& w, const Matrix& x,
                           const std::optional<Vector>& bias) {
  require(static_cast<int64_t>(x.shape(1)) == w.columns, "x has another width than the matrix");
  require(!bias || static_cast<int64_t>(bias->shape(0)) == w.rows, "one bias for each output");
}

// How much of a product one call of a kernel makes; 0 for all of it.
struct Pieces {
  int64_t tiles = 0;
  int64_t rows = 0;
};

// out = x W^T + bias piece by piece, so that a test can show that the split does not matter.
template <class Kernels, class Inputs>
void multiply_in_pieces(const Kernels& kernels, const PackedMatrix& w, const Inputs& x,
                        int64_t rows, Pieces pieces, const float* bias, float* out) {
  const int64_t tile_step = pieces.tiles > 0 ? pieces.tiles : w.tiles();
  const int64_t row_step = pieces.rows > 0 ? pieces.rows : std::max<int64_t>(rows, 1);
  for (int64_t tile = 0; tile < w.tiles(); tile += tile_step) {
    for (int64_t row = 0; row < rows; row += row_step) {
      kernels.multiply(w, tile, std::min(tile + tile_step, w.tiles()), x, row,
                       std::min(row + row_step, rows), bias, out, w.rows);
    }
  }
}

}  // namespace fewbit
