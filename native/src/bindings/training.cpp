// The passes of tuning over bf16 arrays; fewbit.runtime.torch_native is their only user.
#include "training/training.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "executor/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbit {
namespace {

template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pool = std::shared_ptr<ThreadPool>;
using Bits = uint16_t;

template <class A, class B>
bool alike(const A& a, const B& b) {
  return a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1);
}

// Calls job(row) for all rows, dealt out to the pool's threads some at a time.
template <class Job>
void each_row(ThreadPool& pool, int64_t rows, const Job& job) {
  const nb::gil_scoped_release release;
  const int64_t share = std::max<int64_t>(1, rows / (16 * pool.size()));
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t first = next.fetch_add(share); first < rows; first = next.fetch_add(share))
      for (int64_t row = first; row < std::min(first + share, rows); ++row) job(row);
  });
}

struct Grid {
  Rows<const uint8_t> levels;
  bool is_signed;
  Rows<const float> scales;
  std::optional<Rows<const float>> offsets;
  std::optional<Rows<const float>> zeros;
};

GridRows rows_of(const Grid& grid) {
  const auto columns = static_cast<int64_t>(grid.levels.shape(1));
  const auto groups = static_cast<int64_t>(grid.scales.shape(1));
  require(grid.scales.shape(0) == grid.levels.shape(0) && groups > 0 &&
              columns % (groups * kLanes) == 0,
          "a matrix needs a scale for each of its groups, of 16 columns or a multiple");
  require((!grid.offsets || alike(*grid.offsets, grid.scales)) &&
              (!grid.zeros || alike(*grid.zeros, grid.scales)),
          "offsets and zero points must be as many as scales");
  return {grid.levels.data(),
          grid.is_signed,
          grid.scales.data(),
          grid.offsets ? grid.offsets->data() : nullptr,
          grid.zeros ? grid.zeros->data() : nullptr,
          groups,
          columns / groups};
}

void dequantize(const Pool& pool, const Rows<const uint8_t>& levels, bool is_signed,
                const Rows<const float>& scales, const std::optional<Rows<const float>>& offsets,
                const std::optional<Rows<const float>>& zeros, const Rows<Bits>& out,
                const std::string& isa) {
  const GridRows rows = rows_of({levels, is_signed, scales, offsets, zeros});
  require(alike(levels, out), "the values must have the levels' shape");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto columns = static_cast<int64_t>(out.shape(1));
  each_row(*pool, static_cast<int64_t>(out.shape(0)),
           [&](int64_t row) { kernels.dequantize(rows, row, out.data() + row * columns); });
}

void gather(const Pool& pool, const Rows<const uint8_t>& levels, bool is_signed,
            const Rows<const float>& scales, const std::optional<Rows<const float>>& zeros,
            const Rows<const Bits>& gradient, const Rows<float>& products,
            const std::optional<Rows<float>>& sums, const std::string& isa) {
  const GridRows rows = rows_of({levels, is_signed, scales, std::nullopt, zeros});
  require(alike(levels, gradient) && alike(products, scales) && (!sums || alike(*sums, scales)),
          "the gradient must have the levels' shape, and the sums that of the scales");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto columns = static_cast<int64_t>(gradient.shape(1));
  each_row(*pool, static_cast<int64_t>(gradient.shape(0)), [&](int64_t row) {
    float* sum = sums ? sums->data() + row * rows.groups : nullptr;
    kernels.gather(rows, row, gradient.data() + row * columns, products.data() + row * rows.groups,
                   sum);
  });
}

// Positions of the keys that row `row` sees: queries are `length` to a head, one head under the
// other; a window of 0 is none.
SeenRow seen(const Rows<Bits>& scores, int64_t row, int64_t length, int64_t window) {
  const auto keys = static_cast<int64_t>(scores.shape(1));
  const int64_t last = row % length + 1;
  const int64_t first = window > 0 ? std::max<int64_t>(0, last - window) : 0;
  return {scores.data() + row * keys, keys, first, last};
}

void check_scores(const Rows<Bits>& scores, int64_t window) {
  require(scores.shape(1) > 0 && scores.shape(0) % scores.shape(1) == 0 && window >= 0,
          "scores must be heads of as many queries as keys");
}

void seen_softmax(const Pool& pool, const Rows<Bits>& scores, int64_t window, float scale,
                  const std::string& isa) {
  check_scores(scores, window);
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto length = static_cast<int64_t>(scores.shape(1));
  each_row(*pool, static_cast<int64_t>(scores.shape(0)),
           [&](int64_t row) { kernels.softmax(seen(scores, row, length, window), scale); });
}

void seen_softmax_back(const Pool& pool, const Rows<Bits>& gradient,
                       const Rows<const Bits>& probabilities, int64_t window, float scale,
                       const std::string& isa) {
  check_scores(gradient, window);
  require(alike(gradient, probabilities), "the gradient must have the probabilities' shape");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto length = static_cast<int64_t>(gradient.shape(1));
  each_row(*pool, static_cast<int64_t>(gradient.shape(0)), [&](int64_t row) {
    kernels.softmax_back(seen(gradient, row, length, window), probabilities.data() + row * length,
                         scale);
  });
}

void pull_logits(const Pool& pool, const Rows<const Bits>& theirs, const Rows<Bits>& ours,
                 const Vector<const float>& shares, const Vector<float>& divergences,
                 float their_cap, float our_cap, const std::string& isa) {
  require(alike(theirs, ours) && shares.shape(0) == ours.shape(0) &&
              divergences.shape(0) == ours.shape(0) && ours.shape(1) > 0,
          "both sides need equal logits, and a share and a place for each row");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto length = static_cast<int64_t>(ours.shape(1));
  each_row(*pool, static_cast<int64_t>(ours.shape(0)), [&](int64_t row) {
    const PullTask task{length, shares.data()[row], their_cap, our_cap};
    divergences.data()[row] =
        kernels.pull(task, theirs.data() + row * length, ours.data() + row * length);
  });
}

void gated(const Pool& pool, const Rows<const Bits>& gate, const Rows<const Bits>& up, bool gelu,
           const Rows<Bits>& out, const std::string& isa) {
  require(alike(gate, up) && alike(gate, out), "gate, up and the result must be alike");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto width = static_cast<int64_t>(gate.shape(1));
  each_row(*pool, static_cast<int64_t>(gate.shape(0)), [&](int64_t row) {
    const int64_t at = row * width;
    kernels.gated(gate.data() + at, up.data() + at, width, gelu, out.data() + at);
  });
}

void gated_back(const Pool& pool, const Rows<const Bits>& gradient, const Rows<const Bits>& gate,
                const Rows<const Bits>& up, bool gelu, const Rows<Bits>& towards_gate,
                const Rows<Bits>& towards_up, const std::string& isa) {
  require(alike(gate, up) && alike(gate, gradient) && alike(gate, towards_gate) &&
              alike(gate, towards_up),
          "gate, up and all gradients must be alike");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto width = static_cast<int64_t>(gate.shape(1));
  each_row(*pool, static_cast<int64_t>(gate.shape(0)), [&](int64_t row) {
    const int64_t at = row * width;
    kernels.gated_back({gradient.data() + at, gate.data() + at, up.data() + at,
                        towards_gate.data() + at, towards_up.data() + at},
                       width, gelu);
  });
}

}  // namespace

void bind_training(nb::module_& module) {
  module.def("dequantize_rows", &dequantize, "pool"_a, nb::kw_only(), "levels"_a, "signed"_a,
             "scales"_a, "offsets"_a.none(), "zeros"_a.none(), "out"_a, "isa"_a);
  module.def("gather_groups", &gather, "pool"_a, nb::kw_only(), "levels"_a, "signed"_a, "scales"_a,
             "zeros"_a.none(), "gradient"_a, "products"_a, "sums"_a.none(), "isa"_a);
  module.def("seen_softmax", &seen_softmax, "pool"_a, "scores"_a, "window"_a, "scale"_a, "isa"_a);
  module.def("seen_softmax_back", &seen_softmax_back, "pool"_a, "gradient"_a, "probabilities"_a,
             "window"_a, "scale"_a, "isa"_a);
  module.def("pull_logits", &pull_logits, "pool"_a, nb::kw_only(), "theirs"_a, "ours"_a, "shares"_a,
             "divergences"_a, "their_cap"_a, "our_cap"_a, "isa"_a);
  module.def("gated", &gated, "pool"_a, "gate"_a, "up"_a, "gelu"_a, "out"_a, "isa"_a);
  module.def("gated_back", &gated_back, "pool"_a, nb::kw_only(), "gradient"_a, "gate"_a, "up"_a,
             "gelu"_a, "towards_gate"_a, "towards_up"_a, "isa"_a);
}

}  // namespace fewbit
