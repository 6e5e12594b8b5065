// Packed matrices and the linear kernels for fewbit.runtime.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

struct NamedIsa {
  const char* name;
  Isa isa;
};

// Best first.
constexpr std::array<NamedIsa, 4> kIsas{{{"amx", Isa::kAmx},
                                         {"avx512vnni", Isa::kAvx512Vnni},
                                         {"avx2", Isa::kAvx2},
                                         {"portable", Isa::kPortable}}};

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto& [name, isa] : kIsas) {
    if (isa_available(isa)) names.emplace_back(name);
  }
  return names;
}

}  // namespace

Isa isa_named(const std::string& wanted) {
  for (const auto& [name, isa] : kIsas) {
    if (wanted != name) continue;
    if (!isa_available(isa)) {
      throw std::invalid_argument("this CPU cannot run instruction set '" + wanted + "'");
    }
    return isa;
  }
  throw std::invalid_argument("no instruction set '" + wanted + "'");
}

void bind_linear(nb::module_& module) {
  module.def("available_isas", &available_isas, "Instruction sets this CPU can run, best first.");
  bind_simd(module);
}

}  // namespace fewbit
