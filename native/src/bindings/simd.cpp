// The lane functions over NumPy arrays, for tests/test_simd.py.
#include "simd/simd.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "simd/probes.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

int64_t lanes_of(size_t n) {
  if (n % kLanes) throw std::invalid_argument("the length must be a multiple of 16");
  return static_cast<int64_t>(n);
}

Unary unary_named(const std::string& name) {
  constexpr std::array<std::string_view, 8> names{"exp",       "tanh", "sigmoid", "silu",
                                                  "gelu_tanh", "sqrt", "round",   "half"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<Unary>(i);
  }
  throw std::invalid_argument("no lane function '" + name + "'");
}

Out<float> unary(const std::string& isa, const std::string& name, In<float> x) {
  auto out = new_array<float, 1>({x.size()});
  simd_probes(isa_named(isa)).unary(unary_named(name), x.data(), lanes_of(x.size()), out.data());
  return out;
}

Out<float> fma(const std::string& isa, In<float> a, In<float> b, In<float> c) {
  if (a.size() != b.size() || a.size() != c.size()) throw std::invalid_argument("lengths differ");
  auto out = new_array<float, 1>({a.size()});
  simd_probes(isa_named(isa)).fma(a.data(), b.data(), c.data(), lanes_of(a.size()), out.data());
  return out;
}

Out<float> from_half(const std::string& isa, In<uint16_t> h) {
  auto out = new_array<float, 1>({h.size()});
  simd_probes(isa_named(isa)).from_half(h.data(), lanes_of(h.size()), out.data());
  return out;
}

Out<uint16_t> to_half(const std::string& isa, In<float> x) {
  auto out = new_array<uint16_t, 1>({x.size()});
  simd_probes(isa_named(isa)).to_half(x.data(), lanes_of(x.size()), out.data());
  return out;
}

Out<uint16_t> to_bfloat(const std::string& isa, In<float> x) {
  auto out = new_array<uint16_t, 1>({x.size()});
  simd_probes(isa_named(isa)).to_bfloat(x.data(), lanes_of(x.size()), out.data());
  return out;
}

Out<int32_t> dot4(const std::string& isa, In<int32_t> acc, In<uint8_t> u, In<int8_t> s,
                  bool narrow) {
  if (acc.size() != 16 || u.size() != 64 || s.size() != 64) {
    throw std::invalid_argument("dot4 takes 16 sums and 64 bytes each");
  }
  auto out = new_array<int32_t, 1>({16});
  simd_probes(isa_named(isa)).dot4(acc.data(), u.data(), s.data(), narrow, out.data());
  return out;
}

std::tuple<Out<float>, Out<float>> reduce(const std::string& isa, In<float> x) {
  auto sums = new_array<float, 1>({x.size() / kLanes});
  auto maxima = new_array<float, 1>({x.size() / kLanes});
  simd_probes(isa_named(isa)).reduce(x.data(), lanes_of(x.size()), sums.data(), maxima.data());
  return {sums, maxima};
}

// Sums the words of `x`, a multiple of 256 bytes, without the GIL.
int32_t read(const std::string& isa, In<uint8_t> x) {
  if (x.size() % 256) throw std::invalid_argument("the length must be a multiple of 256");
  const SimdProbes& probes = simd_probes(isa_named(isa));
  nb::gil_scoped_release release;
  return probes.read(x.data(), static_cast<int64_t>(x.size()));
}

}  // namespace

void bind_simd(nb::module_& module) {
  module.def("simd_unary", &unary, nb::arg("isa"), nb::arg("name"), nb::arg("x"));
  module.def("simd_fma", &fma, nb::arg("isa"), nb::arg("a"), nb::arg("b"), nb::arg("c"));
  module.def("simd_from_half", &from_half, nb::arg("isa"), nb::arg("halves"));
  module.def("simd_to_half", &to_half, nb::arg("isa"), nb::arg("x"));
  module.def("simd_to_bfloat", &to_bfloat, nb::arg("isa"), nb::arg("x"));
  module.def("simd_dot4", &dot4, nb::arg("isa"), nb::arg("acc"), nb::arg("u"), nb::arg("s"),
             nb::arg("narrow"));
  module.def("simd_read", &read, nb::arg("isa"), nb::arg("x"));
  module.def("simd_reduce", &reduce, nb::arg("isa"), nb::arg("x"));
}

}  // namespace fewbit
