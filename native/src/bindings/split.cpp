// The kernels of inputs cut into bf16 pieces, for fewbit.runtime's tests and benchmarks.
#include "linear/split.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "executor/memory.h"
#include "linear/repack.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// Multiplies piece by piece, so that a test can show that the split of the work does not matter.
NewMatrix multiply(const OwnedMatrix& packed, const Matrix& x, const std::optional<Vector>& bias,
                   int64_t tiles_at_once, int64_t rows_at_once) {
  const PackedMatrix& w = packed.matrix;
  require(isa_available(Isa::kAmx), "this CPU lacks the tiles of AMX");
  require(fits_split(w), "the weights are not bf16, or their columns no multiple of 32");
  require(static_cast<int64_t>(x.shape(1)) == w.columns, "x has another width than the matrix");
  require(!bias || static_cast<int64_t>(bias->shape(0)) == w.rows, "one bias for each output");
  const SplitKernels& kernels = *split_kernels(Isa::kAmx);
  const auto rows = static_cast<int64_t>(x.shape(0));
  const int64_t tile_step = tiles_at_once > 0 ? tiles_at_once : w.tiles();
  const int64_t row_step = rows_at_once > 0 ? rows_at_once : std::max<int64_t>(rows, 1);
  auto out = new_array<float, 2>({x.shape(0), static_cast<size_t>(w.rows)});
  const float* added = bias ? bias->data() : nullptr;
  nb::gil_scoped_release release;
  const Bytes memory(split_bytes(rows, w.columns));
  const SplitActivations a{rows, w.columns, memory.data()};
  for (int64_t r = 0; r < rows; ++r) kernels.split(x.data() + r * w.columns, w.columns, a, r, 0);
  for (int64_t tile = 0; tile < w.tiles(); tile += tile_step) {
    for (int64_t row = 0; row < rows; row += row_step) {
      kernels.multiply(w, tile, std::min(tile + tile_step, w.tiles()), a, row,
                       std::min(row + row_step, rows), added, out.data(), w.rows);
    }
  }
  return out;
}

}  // namespace

void bind_split(nb::module_& module) {
  module.def("multiply_split", &multiply, nb::arg("packed"), nb::arg("x"), nb::arg("bias").none(),
             nb::arg("tiles_at_once") = 0, nb::arg("rows_at_once") = 0);
}

}  // namespace fewbit
