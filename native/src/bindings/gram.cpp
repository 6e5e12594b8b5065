// The statistics of calibration for fewbit.runtime.gram.
#include "gram/gram.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

using Input = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Square = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pool = std::shared_ptr<ThreadPool>;

void require_rows(const Input& x, const std::vector<int64_t>& lengths) {
  const auto rows = static_cast<int64_t>(x.shape(0));
  require(std::all_of(lengths.begin(), lengths.end(), [](int64_t n) { return n >= 0; }) &&
              std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == rows,
          "the lengths of the sequences are not the rows of x");
}

void add_gram_of(const Square& gram, const Input& x, const std::vector<int64_t>& lengths,
                 const std::string& isa, const Pool& pool) {
  require(gram.shape(0) == gram.shape(1) && gram.shape(0) == x.shape(1),
          "the matrix is not as wide and as high as x has columns");
  require_rows(x, lengths);
  const GramKernels& kernels = gram_kernels(isa_named(isa));
  nb::gil_scoped_release release;
  add_gram({x.data(), static_cast<int64_t>(x.shape(1)), lengths}, gram.data(), kernels, *pool);
}

void add_cross_of(const Square& cross, const Input& left, const Input& right,
                  const std::vector<int64_t>& lengths, const std::string& isa, const Pool& pool) {
  require(cross.shape(0) == left.shape(1) && cross.shape(1) == right.shape(1),
          "the matrix is not as high and as wide as the inputs have columns");
  require_rows(left, lengths);
  require_rows(right, lengths);
  const GramKernels& kernels = gram_kernels(isa_named(isa));
  nb::gil_scoped_release release;
  add_cross({left.data(), static_cast<int64_t>(left.shape(1)), lengths},
            {right.data(), static_cast<int64_t>(right.shape(1)), lengths}, cross.data(), kernels,
            *pool);
}

void mirror(const Square& gram, const Pool& pool) {
  require(gram.shape(0) == gram.shape(1), "the matrix is not square");
  nb::gil_scoped_release release;
  mirror_gram(gram.data(), static_cast<int64_t>(gram.shape(0)), *pool);
}

void add_moments_of(const Doubles& squares, const Doubles& absolute, const Floats& largest,
                    const Input& x, const std::string& isa, const Pool& pool) {
  const size_t columns = x.shape(1);
  require(
      squares.shape(0) == columns && absolute.shape(0) == columns && largest.shape(0) == columns,
      "the sums are not as wide as x");
  const GramKernels& kernels = gram_kernels(isa_named(isa));
  nb::gil_scoped_release release;
  add_moments(x.data(), static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(columns),
              {squares.data(), absolute.data(), largest.data()}, kernels, *pool);
}

}  // namespace

void bind_gram(nb::module_& module) {
  using nb::arg;
  module.def(
      "gram_kernel", [](const std::string& isa) { return gram_kernels(isa_named(isa)).id; },
      arg("isa"));
  module.def("add_gram", &add_gram_of, arg("gram"), arg("x"), arg("lengths"), arg("isa"),
             arg("pool"));
  module.def("add_cross", &add_cross_of, arg("cross"), arg("left"), arg("right"), arg("lengths"),
             arg("isa"), arg("pool"));
  module.def("mirror_gram", &mirror, arg("gram"), arg("pool"));
  module.def("add_moments", &add_moments_of, arg("squares"), arg("absolute"), arg("largest"),
             arg("x"), arg("isa"), arg("pool"));
}

}  // namespace fewbit
