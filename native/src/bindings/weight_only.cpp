// The weight-only kernels for fewbit.runtime's tests and benchmarks.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/products.h"
#include "linear/repack.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

// Rows rounded to bf16 with the memory they lie in.
struct BfloatRows {
  std::vector<float> memory;
  BfloatActivations rows;
};

BfloatRows round_rows(const Matrix& x, const WeightOnlyKernels& kernels) {
  const auto rows = static_cast<int64_t>(x.shape(0));
  const auto columns = static_cast<int64_t>(x.shape(1));
  require(columns > 0 && columns % kGroup == 0, "x needs columns that are a multiple of 32");
  BfloatRows rounded;
  rounded.memory.resize(bfloat_bytes(rows, columns) / sizeof(float));
  rounded.rows = bfloat_in(rounded.memory.data(), rows, columns);
  const BfloatActivations& a = rounded.rows;
  for (int64_t r = 0; r < rows; ++r) {
    kernels.round(x.data() + r * columns, columns, a.values + r * columns, a.sums + r * a.halves());
  }
  return rounded;
}

void check(const PackedMatrix& w, const Matrix& x, const std::optional<Vector>& bias) {
  require(!w.is_float(), "float weights are multiplied by floats");
  require_shapes(w, x, bias);
}

NewMatrix multiply(const OwnedMatrix& packed, const Matrix& x, const std::optional<Vector>& bias,
                   const std::string& isa, int64_t tiles_at_once, int64_t rows_at_once) {
  const PackedMatrix& w = packed.matrix;
  check(w, x, bias);
  const WeightOnlyKernels& kernels = weight_only_kernels(isa_named(isa));
  const auto rows = static_cast<int64_t>(x.shape(0));
  auto out = new_array<float, 2>({x.shape(0), static_cast<size_t>(w.rows)});
  const float* added = bias ? bias->data() : nullptr;
  const BfloatRows rounded = round_rows(x, kernels);
  nb::gil_scoped_release release;
  multiply_in_pieces(kernels, w, rounded.rows, rows, {tiles_at_once, rows_at_once}, added,
                     out.data());
  return out;
}

// The shortest of `repeats` multiplications of all tiles by all rows, in seconds, for benchmarks.
double time_multiply(const OwnedMatrix& packed, const Matrix& x, const std::string& isa,
                     int repeats) {
  const PackedMatrix& w = packed.matrix;
  check(w, x, std::nullopt);
  const WeightOnlyKernels& kernels = weight_only_kernels(isa_named(isa));
  const auto rows = static_cast<int64_t>(x.shape(0));
  const BfloatRows rounded = round_rows(x, kernels);
  std::vector<float> out(static_cast<size_t>(rows * w.rows));
  nb::gil_scoped_release release;
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels.multiply(w, 0, w.tiles(), rounded.rows, 0, rows, nullptr, out.data(), w.rows);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

// x rounded to bf16 [rows, columns], and its sums over 16 columns [rows, columns / 16].
std::tuple<NewMatrix, NewMatrix> round_activations(const Matrix& x, const std::string& isa) {
  const BfloatRows rounded = round_rows(x, weight_only_kernels(isa_named(isa)));
  const BfloatActivations& a = rounded.rows;
  auto values = new_array<float, 2>({x.shape(0), x.shape(1)});
  auto sums = new_array<float, 2>({x.shape(0), static_cast<size_t>(a.halves())});
  std::copy_n(a.values, a.rows * a.columns, values.data());
  std::copy_n(a.sums, a.rows * a.halves(), sums.data());
  return {values, sums};
}

}  // namespace

void bind_weight_only(nb::module_& module) {
  module.def("multiply_weight_only", &multiply, nb::arg("packed"), nb::arg("x"),
             nb::arg("bias").none(), nb::arg("isa"), nb::arg("tiles_at_once") = 0,
             nb::arg("rows_at_once") = 0);
  module.def("time_weight_only", &time_multiply, nb::arg("packed"), nb::arg("x"), nb::arg("isa"),
             nb::arg("repeats"));
  module.def("round_activations", &round_activations, nb::arg("x"), nb::arg("isa"));
}

}  // namespace fewbit
