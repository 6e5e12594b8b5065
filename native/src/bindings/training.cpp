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
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "executor/thread_pool.h"
#include "training/attention.h"
#include "training/product.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbit {
namespace {

template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
using Pool = std::shared_ptr<ThreadPool>;
using Bits = uint16_t;

template <class A, class B>
bool alike(const A& a, const B& b) {
  return a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1);
}

// Calls job(first, last) for runs of rows, dealt out to the pool's threads.
template <class Job>
void each_run(ThreadPool& pool, int64_t rows, const Job& job) {
  const nb::gil_scoped_release release;
  const int64_t share = std::max<int64_t>(1, rows / (16 * pool.size()));
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t first = next.fetch_add(share); first < rows; first = next.fetch_add(share))
      job(first, std::min(first + share, rows));
  });
}

// Calls job(row) for all rows.
template <class Job>
void each_row(ThreadPool& pool, int64_t rows, const Job& job) {
  each_run(pool, rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) job(row);
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
SeenRow seen(const Rows<Bits>& scores, float* room, int64_t row, int64_t length, int64_t window) {
  const auto keys = static_cast<int64_t>(scores.shape(1));
  const int64_t last = row % length + 1;
  const int64_t first = window > 0 ? std::max<int64_t>(0, last - window) : 0;
  return {scores.data() + row * keys, room, keys, first, last};
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
  each_run(*pool, static_cast<int64_t>(scores.shape(0)), [&](int64_t begin, int64_t end) {
    std::vector<float> room(length);
    for (int64_t row = begin; row < end; ++row)
      kernels.softmax(seen(scores, room.data(), row, length, window), scale);
  });
}

void seen_softmax_back(const Pool& pool, const Rows<Bits>& gradient,
                       const Rows<const Bits>& probabilities, int64_t window, float scale,
                       const std::string& isa) {
  check_scores(gradient, window);
  require(alike(gradient, probabilities), "the gradient must have the probabilities' shape");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  const auto length = static_cast<int64_t>(gradient.shape(1));
  each_row(*pool, static_cast<int64_t>(gradient.shape(0)), [&](int64_t row) {
    kernels.softmax_back(seen(gradient, nullptr, row, length, window),
                         probabilities.data() + row * length, scale);
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

// The input of a norm: float32 or bf16.
template <class T>
NormRows norm_rows(const Rows<const T>& x, const Vector<const float>& factor,
                   const Vector<float>& inverse) {
  require(factor.shape(0) == x.shape(1) && inverse.shape(0) == x.shape(0) && x.shape(1) > 0,
          "a norm needs a factor for each column and a place for each row");
  return {x.data(), sizeof(T) == sizeof(Bits), static_cast<int64_t>(x.shape(1)), factor.data(),
          inverse.data()};
}

template <class T>
void norm(const Pool& pool, const Rows<const T>& x, const Vector<const float>& factor, float eps,
          const Rows<Bits>& out, const Vector<float>& inverse, const std::string& isa) {
  const NormRows rows = norm_rows(x, factor, inverse);
  require(alike(x, out), "a norm's result must have its input's shape");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  each_row(*pool, static_cast<int64_t>(x.shape(0)),
           [&](int64_t row) { kernels.norm(rows, row, eps, out.data() + row * rows.width); });
}

// Rows whose gradients of the factor are summed before they are handed over.
constexpr int64_t kNormRows = 64;

template <class T>
void norm_back(const Pool& pool, const Rows<const T>& x, const Vector<const float>& factor,
               const Vector<float>& inverse, const Rows<const Bits>& gradient,
               const Rows<T>& towards, const Rows<float>& towards_factor, const std::string& isa) {
  const NormRows rows = norm_rows(x, factor, inverse);
  const auto count = static_cast<int64_t>(x.shape(0));
  const auto blocks = static_cast<int64_t>(towards_factor.shape(0));
  require(alike(x, gradient) && alike(x, towards) && towards_factor.shape(1) == x.shape(1) &&
              blocks == (count + kNormRows - 1) / kNormRows,
          "gradients must have the norm's shape, and those of the factor a row for each 64");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  each_row(*pool, blocks, [&](int64_t block) {
    float* sums = towards_factor.data() + block * rows.width;
    std::fill_n(sums, rows.width, 0.0f);
    const int64_t end = std::min(count, (block + 1) * kNormRows);
    for (int64_t row = block * kNormRows; row < end; ++row)
      kernels.norm_back(rows, row, {gradient.data(), towards.data(), sums});
  });
}

void rotate(const Pool& pool, const Rows<const Bits>& x, const Rows<const float>& table, bool back,
            const Rows<Bits>& out, const std::string& isa) {
  const auto wide = static_cast<int64_t>(x.shape(1)), head = static_cast<int64_t>(table.shape(1));
  const auto length = static_cast<int64_t>(table.shape(0));
  require(alike(x, out) && length > 0 && head > 0 && head % 2 == 0 && wide % head == 0 &&
              x.shape(0) % table.shape(0) == 0,
          "rows must be whole sequences of whole heads");
  const TrainingKernels& kernels = training_kernels(isa_named(isa));
  each_row(*pool, static_cast<int64_t>(x.shape(0)), [&](int64_t row) {
    for (int64_t at = row * wide; at < (row + 1) * wide; at += head)
      kernels.rotate(x.data() + at, table.data() + row % length * head, head / 2,
                     back ? -1.0f : 1.0f, out.data() + at);
  });
}

// A factor whose rows (or columns, of the right one) are index `outer` of a matrix.
Factor factor(const Matrix<const Bits>& matrix, int outer) {
  const Factor found{matrix.data(), matrix.stride(outer), matrix.stride(1 - outer)};
  require(found.step == 1 || found.depth_step == 1, "one index of a factor must be contiguous");
  return found;
}

void multiplied(const Pool& pool, const Matrix<const Bits>& left, const Matrix<const Bits>& right,
                const Rows<Bits>& out, bool add, const std::string& isa) {
  require(left.shape(1) == right.shape(0) && left.shape(1) > 0, "the factors must share a depth");
  require(out.shape(0) == left.shape(0) && out.shape(1) == right.shape(1),
          "the result must have the left factor's rows and the right one's columns");
  require(multiplies(isa_named(isa)), "this instruction set has no products of bf16");
  const Product product{factor(left, 0),
                        factor(right, 1),
                        static_cast<int64_t>(out.shape(0)),
                        static_cast<int64_t>(out.shape(1)),
                        static_cast<int64_t>(left.shape(1)),
                        out.data(),
                        static_cast<int64_t>(out.shape(1)),
                        add};
  const nb::gil_scoped_release release;
  multiply(product, *pool);
}

// Queries, keys and values [batch * length, heads * width].
struct Sides {
  Rows<const Bits> q, k, v;
};

AttentionTask attention(const Sides& sides, int64_t length, int64_t width, int64_t window,
                        float scale, const std::string& isa) {
  const auto& [q, k, v] = sides;
  const auto rows = static_cast<int64_t>(q.shape(0)), wide = static_cast<int64_t>(q.shape(1));
  const auto kept = static_cast<int64_t>(k.shape(1));
  require(alike(k, v) && k.shape(0) == q.shape(0) && length > 0 && rows % length == 0 &&
              width > 0 && kept > 0 && kept % width == 0 && wide % kept == 0 && window >= 0,
          "attention needs whole sequences of whole heads, and as many values as keys");
  require(multiplies(isa_named(isa)), "this instruction set has no products of bf16");
  return {q.data(),     k.data(),     v.data(), rows / length, length,
          wide / width, kept / width, width,    window,        scale};
}

void attended(const Pool& pool, const Rows<const Bits>& q, const Rows<const Bits>& k,
              const Rows<const Bits>& v, int64_t length, int64_t width, int64_t window, float scale,
              const Rows<Bits>& out, const std::string& isa) {
  const AttentionTask task = attention({q, k, v}, length, width, window, scale, isa);
  require(alike(q, out), "the result must have the queries' shape");
  const nb::gil_scoped_release release;
  attend(task, out.data(), training_kernels(isa_named(isa)), *pool);
}

void attended_back(const Pool& pool, const Rows<const Bits>& q, const Rows<const Bits>& k,
                   const Rows<const Bits>& v, int64_t length, int64_t width, int64_t window,
                   float scale, const Rows<const Bits>& gradient, const Rows<Bits>& towards_q,
                   const Rows<Bits>& towards_k, const Rows<Bits>& towards_v,
                   const std::string& isa) {
  const AttentionTask task = attention({q, k, v}, length, width, window, scale, isa);
  require(alike(q, gradient) && alike(q, towards_q) && alike(k, towards_k) && alike(v, towards_v),
          "gradients must have the shape of what they belong to");
  const nb::gil_scoped_release release;
  attend_back(task, {gradient.data(), towards_q.data(), towards_k.data(), towards_v.data()},
              training_kernels(isa_named(isa)), *pool);
}

template <class T>
void bind_norm(nb::module_& module) {
  module.def("norm", &norm<T>, "pool"_a, nb::kw_only(), "x"_a.noconvert(), "factor"_a, "eps"_a,
             "out"_a, "inverse"_a, "isa"_a);
  module.def("norm_back", &norm_back<T>, "pool"_a, nb::kw_only(), "x"_a.noconvert(), "factor"_a,
             "inverse"_a, "gradient"_a, "towards"_a.noconvert(), "towards_factor"_a, "isa"_a);
}

}  // namespace

void bind_training(nb::module_& module) {
  bind_norm<float>(module);
  bind_norm<Bits>(module);
  module.def("rotate", &rotate, "pool"_a, nb::kw_only(), "x"_a, "table"_a, "back"_a, "out"_a,
             "isa"_a);
  module.def("attended", &attended, "pool"_a, nb::kw_only(), "q"_a, "k"_a, "v"_a, "length"_a,
             "width"_a, "window"_a, "scale"_a, "out"_a, "isa"_a);
  module.def("attended_back", &attended_back, "pool"_a, nb::kw_only(), "q"_a, "k"_a, "v"_a,
             "length"_a, "width"_a, "window"_a, "scale"_a, "gradient"_a, "towards_q"_a,
             "towards_k"_a, "towards_v"_a, "isa"_a);
  module.def(
      "multiplies", [](const std::string& isa) { return multiplies(isa_named(isa)); }, "isa"_a);
  module.def("multiplied", &multiplied, "pool"_a, nb::kw_only(), "left"_a, "right"_a, "out"_a,
             "add"_a, "isa"_a);
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
