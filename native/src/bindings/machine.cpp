// What the machine can do at most, for fewbit.runtime.machine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings/bindings.h"
#include "machine/peak.h"
#include "machine/read_buffer.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

constexpr int kMostThreads = 1024;

void require_threads(int threads) {
  if (threads < 1 || threads > kMostThreads) {
    throw std::invalid_argument("threads must be 1 to 1024");
  }
}

void make_buffer(ReadBuffer* buffer, int64_t bytes, int threads) {
  require_threads(threads);
  if (bytes < 1) throw std::invalid_argument("bytes must be at least 1");
  nb::gil_scoped_release release;
  new (buffer) ReadBuffer(bytes, threads);
}

// Seconds, and the wrapped sum of all words.
std::tuple<double, int32_t> read(const ReadBuffer& buffer, const std::string& isa) {
  const Isa chosen = isa_named(isa);
  nb::gil_scoped_release release;
  const auto [seconds, sum] = buffer.read(chosen);
  return {seconds, sum};
}

double integer_peak(const std::string& isa, int threads, int64_t steps) {
  const Isa chosen = isa_named(isa);
  require_threads(threads);
  if (steps < 1) throw std::invalid_argument("steps must be at least 1");
  nb::gil_scoped_release release;
  return measure_peak(chosen, threads, steps);
}

}  // namespace

void bind_machine(nb::module_& module) {
  nb::class_<ReadBuffer>(module, "ReadBuffer", "Memory that several threads read at once.")
      .def("__init__", &make_buffer, nb::arg("bytes"), nb::arg("threads"))
      .def("read", &read, nb::arg("isa"))
      .def_prop_ro("nbytes", &ReadBuffer::bytes);
  module.def("integer_peak", &integer_peak, nb::arg("isa"), nb::arg("threads"), nb::arg("steps"));
}

}  // namespace fewbit
