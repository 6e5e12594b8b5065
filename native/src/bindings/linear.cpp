// Packed matrices and the linear kernels for fewbit.runtime.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/products.h"
#include "linear/layout.h"
#include "linear/packed_file.h"
#include "linear/repack.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

struct NamedIsa {
  const char* name;
  Isa isa;
};

// Best first.
constexpr std::array<NamedIsa, 5> kIsas{{{"amx", Isa::kAmx},
                                         {"avx512vnni", Isa::kAvx512Vnni},
                                         {"avx2", Isa::kAvx2},
                                         {"neon", Isa::kNeon},
                                         {"portable", Isa::kPortable}}};

// In the order of Source.
constexpr std::array<std::string_view, 18> kSources{
    "affine", "q4_0", "q4_1",   "q5_0",   "q5_1",  "q8_0", "q2_k", "q3_k", "q4_k",
    "q5_k",   "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "f32",  "f16",  "bf16", "fp8_e4m3"};

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto& [name, isa] : kIsas) {
    if (isa_available(isa)) names.emplace_back(name);
  }
  return names;
}

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using Halves = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Zeros = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

size_t bytes_of_row(const StoredMatrix& m) {
  const auto columns = static_cast<size_t>(m.columns);
  if (m.source == Source::kAffine) return (columns * static_cast<size_t>(m.bits) + 7) / 8;
  const auto size = static_cast<size_t>(block_size(m.source));
  require(columns % size == 0, "the columns do not divide into whole blocks");
  return columns / size * block_bytes(m.source);
}

PackedAs form_named(const std::string& name) {
  if (name == "plain") return PackedAs::kPlain;
  if (name == "nested") return PackedAs::kNested;
  throw std::invalid_argument("no form '" + name + "' of packed weights");
}

void take_scales(StoredMatrix& m, const std::optional<Halves>& scales,
                 const std::optional<Zeros>& zeros) {
  require(scales.has_value(), "affine codes need scales");
  require(m.group > 0 && m.columns % m.group == 0, "the group does not divide the columns");
  const auto rows = static_cast<int64_t>(scales->shape(0));
  const auto groups = static_cast<int64_t>(scales->shape(1));
  require(rows == m.rows || rows == 1, "scales need one row, or one for each row of the matrix");
  require(groups == m.columns / m.group, "scales need one column for each group");
  m.scales = scales->data();
  m.scale_stride = rows == 1 ? 0 : groups;
  if (!zeros) return;
  require(zeros->shape(0) == scales->shape(0) && zeros->shape(1) == scales->shape(1),
          "zero points need the shape of the scales");
  m.zeros = zeros->data();
}

void take_row_scales(StoredMatrix& m, const std::optional<Vector>& scales) {
  require(scales.has_value(), "FP8 codes need scales");
  const auto rows = static_cast<int64_t>(scales->shape(0));
  require(rows == m.rows || rows == 1, "FP8 scales are one, or one for each row of the matrix");
  m.scales = scales->data();
  m.scale_stride = rows == 1 ? 0 : 1;
}

void construct(OwnedMatrix* self, const std::string& source, int64_t columns, const Bytes& codes,
               int bits, int64_t group, const std::optional<Halves>& scales,
               const std::optional<Zeros>& zeros, const std::optional<Vector>& row_scales,
               PackedArena* arena, int threads, const std::string& form) {
  require(codes.shape(1) <= 1 || codes.stride(1) == 1, "the bytes of a row must be contiguous");
  StoredMatrix m{source_named(source), static_cast<int64_t>(codes.shape(0)), columns, codes.data(),
                 static_cast<size_t>(codes.stride(0))};
  m.bits = bits;
  m.group = group;
  require(columns > 0 && columns <= int64_t{1} << 32, "columns are out of range");
  require(m.source != Source::kAffine || (bits >= 2 && bits <= 8), "affine codes have 2 to 8 bits");
  require(codes.shape(1) == bytes_of_row(m), "a row of codes has the wrong number of bytes");
  require(codes.shape(0) <= 1 || codes.stride(0) >= static_cast<int64_t>(codes.shape(1)),
          "rows of codes overlap");
  if (m.source == Source::kAffine) take_scales(m, scales, zeros);
  if (m.source == Source::kFp8E4m3) take_row_scales(m, row_scales);
  const PackedAs as = form_named(form);
  nb::gil_scoped_release release;
  PackedArena own;
  new (self) OwnedMatrix(repack(m, as, arena ? *arena : own, threads));
}

size_t packed_bytes_of(const std::string& source, int64_t rows, int64_t columns, int bits,
                       int64_t group, bool asymmetric, const std::string& form) {
  require(source != "affine" || group > 0, "affine codes have groups of at least one input");
  return packed_bytes(source_named(source), rows, columns, bits, group, asymmetric,
                      form_named(form));
}

size_t bytes_of(const OwnedMatrix& packed) { return matrix_bytes(packed.matrix); }

// A copy of some of the packed bytes, for a file.
nb::bytes bytes_in(const OwnedMatrix& packed, size_t offset, size_t size) {
  const size_t all = bytes_of(packed);
  require(offset <= all && size <= all - offset, "the range ends beyond the matrix");
  return nb::bytes(packed.matrix.data + offset, size);
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> decode(const OwnedMatrix& packed, int64_t row) {
  require(row >= 0 && row < packed.matrix.rows, "no such row");
  auto out = new_array<float, 1>({static_cast<size_t>(packed.matrix.columns)});
  decode_row(packed.matrix, row, out.data());
  return out;
}

// Quantized rows with the memory they lie in.
struct QuantizedRows {
  std::vector<uint8_t> memory;
  Activations rows;
};

constexpr size_t kAlignment = 64;

// How rows are quantized: `int8-g32`, `int8-token`, or `int8-static` with a scale.
void quantize_row(const LinearKernels& kernels, const std::string& activations, float input_scale,
                  const float* x, const Activations& to, int64_t row) {
  if (activations == "int8-g32") return kernels.quantize(x, to, row);
  const bool is_static = activations == "int8-static";
  require(is_static || activations == "int8-token", "no such rounding to int8");
  const float scale = is_static ? input_scale : kernels.scale_of_row(x, to.columns);
  kernels.quantize_with(x, to, row, scale);
}

QuantizedRows quantize_rows(const Matrix& x, const LinearKernels& kernels,
                            const std::string& activations = "int8-g32", float input_scale = 0.0f) {
  const auto rows = static_cast<int64_t>(x.shape(0));
  const auto columns = static_cast<int64_t>(x.shape(1));
  require(columns % kGroup == 0, "int8 activations need columns that are a multiple of 32");
  QuantizedRows quantized;
  quantized.memory.resize(activation_bytes(rows, columns) + kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(quantized.memory.data());
  void* aligned = quantized.memory.data() + (kAlignment - address % kAlignment) % kAlignment;
  quantized.rows = activations_in(aligned, rows, columns, nullptr);
  for (int64_t r = 0; r < rows; ++r) {
    quantize_row(kernels, activations, input_scale, x.data() + r * columns, quantized.rows, r);
  }
  return quantized;
}

NewMatrix multiply(const OwnedMatrix& packed, const Matrix& x, const std::optional<Vector>& bias,
                   const std::string& isa, int64_t tiles_at_once, int64_t rows_at_once,
                   const std::string& activations, float input_scale) {
  const PackedMatrix& w = packed.matrix;
  const LinearKernels& kernels = linear_kernels(isa_named(isa));
  const auto rows = static_cast<int64_t>(x.shape(0));
  require_shapes(w, x, bias);
  auto out = new_array<float, 2>({x.shape(0), static_cast<size_t>(w.rows)});
  const float* added = bias ? bias->data() : nullptr;

  QuantizedRows quantized;
  Activations a{rows,    w.columns, const_cast<float*>(x.data()), nullptr, nullptr, nullptr,
                nullptr, nullptr};
  if (!w.is_float()) {
    quantized = quantize_rows(x, kernels, activations, input_scale);
    a = quantized.rows;
  }
  nb::gil_scoped_release release;
  multiply_in_pieces(kernels, w, a, rows, {tiles_at_once, rows_at_once}, added, out.data());
  return out;
}

// The shortest of `repeats` multiplications of all tiles by all rows, in seconds, for benchmarks.
double time_multiply(const OwnedMatrix& packed, const Matrix& x, const std::string& isa,
                     int repeats) {
  const PackedMatrix& w = packed.matrix;
  const LinearKernels& kernels = linear_kernels(isa_named(isa));
  require(static_cast<int64_t>(x.shape(1)) == w.columns, "x has another width than the matrix");
  const auto rows = static_cast<int64_t>(x.shape(0));
  QuantizedRows quantized;
  if (!w.is_float()) quantized = quantize_rows(x, kernels);
  quantized.rows.rows = rows;
  quantized.rows.columns = w.columns;
  quantized.rows.values = const_cast<float*>(x.data());
  std::vector<float> out(static_cast<size_t>(rows * w.rows));
  nb::gil_scoped_release release;
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels.multiply(w, 0, w.tiles(), quantized.rows, 0, rows, nullptr, out.data(), w.rows);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

using Codes8 = nb::ndarray<nb::numpy, int8_t, nb::ndim<2>>;
using Sums = nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>;

// codes int8 [rows, columns], scales [rows, columns / 32], weighted sums the same, sums of each 16.
std::tuple<Codes8, NewMatrix, NewMatrix, Sums> quantize_activations(const Matrix& x,
                                                                    const std::string& isa,
                                                                    const std::string& activations,
                                                                    float input_scale) {
  const LinearKernels& kernels = linear_kernels(isa_named(isa));
  const QuantizedRows quantized = quantize_rows(x, kernels, activations, input_scale);
  const Activations& a = quantized.rows;
  const size_t rows = x.shape(0);
  const auto runs = static_cast<size_t>(a.runs());
  auto codes = new_array<int8_t, 2>({rows, x.shape(1)});
  auto scales = new_array<float, 2>({rows, runs});
  auto weighted = new_array<float, 2>({rows, runs});
  auto sums = new_array<int32_t, 2>({rows, 2 * runs});
  for (size_t r = 0; r < rows; ++r) {
    for (size_t g = 0; g < runs; ++g) {
      const int64_t slot = a.slot(static_cast<int64_t>(r), static_cast<int64_t>(g));
      const size_t at = r * runs + g;
      std::copy_n(a.q + kGroup * slot, kGroup, codes.data() + kGroup * at);
      scales.data()[at] = a.scales[slot];
      weighted.data()[at] = a.weighted[slot];
      sums.data()[2 * at] = a.centre16[2 * slot] / -32;
      sums.data()[2 * at + 1] = a.centre16[2 * slot + 1] / -32;
    }
  }
  return {codes, scales, weighted, sums};
}

}  // namespace

Source source_named(const std::string& name) {
  const auto found = std::find(kSources.begin(), kSources.end(), name);
  if (found == kSources.end()) throw std::invalid_argument("no packed form of '" + name + "'");
  return static_cast<Source>(found - kSources.begin());
}

Isa isa_named(const std::string& wanted) {
  for (const auto& [name, isa] : kIsas) {
    if (wanted != name) continue;
    require(isa_available(isa), "this CPU cannot run the instruction set");
    return isa;
  }
  throw std::invalid_argument("no instruction set '" + wanted + "'");
}

void bind_linear(nb::module_& module) {
  module.def("available_isas", &available_isas, "Instruction sets this CPU can run, best first.");
  module.attr("layout_version") = kLayoutVersion;
  nb::class_<PackedArena>(module, "PackedArena", "Large blocks that packed matrices share.")
      .def(nb::init<>());
  nb::class_<OwnedMatrix>(module, "PackedMatrix")
      .def("__init__", &construct, nb::arg("source"), nb::arg("columns"), nb::arg("codes"),
           nb::arg("bits") = 0, nb::arg("group") = 0, nb::arg("scales") = nb::none(),
           nb::arg("zeros") = nb::none(), nb::arg("row_scales") = nb::none(),
           nb::arg("arena") = nb::none(), nb::arg("threads") = 1, nb::arg("form") = "plain")
      .def("upper_half", &upper_half, nb::arg("rows"))
      .def("decode_row", &decode, nb::arg("row"))
      .def(
          "checksum", [](const OwnedMatrix& m) { return checksum(m.matrix.data, bytes_of(m)); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("bytes", &bytes_in, nb::arg("offset"), nb::arg("size"))
      .def_prop_ro("rows", [](const OwnedMatrix& m) { return m.matrix.rows; })
      .def_prop_ro("columns", [](const OwnedMatrix& m) { return m.matrix.columns; })
      .def_prop_ro("nbytes", &bytes_of);
  module.def("packed_bytes", &packed_bytes_of, nb::arg("source"), nb::arg("rows"),
             nb::arg("columns"), nb::arg("bits"), nb::arg("group"), nb::arg("asymmetric"),
             nb::arg("form") = "plain");
  module.def("multiply", &multiply, nb::arg("packed"), nb::arg("x"), nb::arg("bias").none(),
             nb::arg("isa"), nb::arg("tiles_at_once") = 0, nb::arg("rows_at_once") = 0,
             nb::arg("activations") = "int8-g32", nb::arg("input_scale") = 0.0f);
  module.def("time_multiply", &time_multiply, nb::arg("packed"), nb::arg("x"), nb::arg("isa"),
             nb::arg("repeats"));
  module.def("quantize_activations", &quantize_activations, nb::arg("x"), nb::arg("isa"),
             nb::arg("activations") = "int8-g32", nb::arg("input_scale") = 0.0f);
  bind_simd(module);
}

}  // namespace fewbit
