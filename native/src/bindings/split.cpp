// The kernels of inputs cut into bf16 pieces, for fewbit.runtime's tests and benchmarks.
#include "linear/split.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/products.h"
#include "executor/memory.h"
#include "linear/repack.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

NewMatrix multiply(const OwnedMatrix& packed, const Matrix& x, const std::optional<Vector>& bias,
                   int64_t tiles_at_once, int64_t rows_at_once) {
  const PackedMatrix& w = packed.matrix;
  require(isa_available(Isa::kAmx), "this CPU lacks the tiles of AMX");
  require(fits_split(w), "the weights are not bf16, or their columns no multiple of 32");
  require_shapes(w, x, bias);
  const SplitKernels& kernels = *split_kernels(Isa::kAmx);
  const auto rows = static_cast<int64_t>(x.shape(0));
  auto out = new_array<float, 2>({x.shape(0), static_cast<size_t>(w.rows)});
  const float* added = bias ? bias->data() : nullptr;
  nb::gil_scoped_release release;
  const Bytes memory(split_bytes(rows, w.columns));
  const SplitActivations a{rows, w.columns, memory.data()};
  for (int64_t r = 0; r < rows; ++r) kernels.split(x.data() + r * w.columns, w.columns, a, r, 0);
  multiply_in_pieces(kernels, w, a, rows, {tiles_at_once, rows_at_once}, added, out.data());
  return out;
}

}  // namespace

void bind_split(nb::module_& module) {
  module.def("multiply_split", &multiply, nb::arg("packed"), nb::arg("x"), nb::arg("bias").none(),
             nb::arg("tiles_at_once") = 0, nb::arg("rows_at_once") = 0);
}

}  // namespace fewbit
