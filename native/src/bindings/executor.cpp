// The thread pool, the Program and the executor for fewbit.runtime.native.
#include "executor/executor.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

#include "bindings/bindings.h"
#include "linear/repack.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows2d = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Shared = std::shared_ptr<OwnedMatrix>;

Matrix matrix_of(const Shared& owned) { return {owned, &owned->matrix}; }

Vector vector_of(const Floats& values) { return {values.data(), values.data() + values.size()}; }

CacheType cache_named(const std::string& name) {
  const char* names[kCacheTypes] = {"f32", "f16", "bf16", "int8", "int4"};
  for (int type = 0; type < kCacheTypes; ++type) {
    if (name == names[type]) return static_cast<CacheType>(type);
  }
  throw std::invalid_argument("no cache type '" + name + "'; choose f32, f16, bf16, int8 or int4.");
}

Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  throw std::invalid_argument("no activation '" + name + "'; choose silu or gelu_tanh.");
}

InputRounding rounding_named(const std::string& name) {
  if (name == "f32") return InputRounding::kNone;
  if (name == "int8-g32") return InputRounding::kInt8Run;
  if (name == "int8-token") return InputRounding::kInt8Row;
  if (name == "int8-static") return InputRounding::kInt8Static;
  if (name == "bf16") return InputRounding::kBfloat16;
  if (name == "f32-split") return InputRounding::kSplit;
  throw std::invalid_argument(
      "no rounding of inputs '" + name +
      "'; choose f32, f32-split, int8-g32, int8-token, int8-static or bf16.");
}

void add_given(Program& program, int out) { program.ops.push_back({out, GivenOp{}}); }

void add_embed(Program& program, int out, const Shared& weight, float scale) {
  program.ops.push_back({out, EmbedOp{matrix_of(weight), scale}});
}

void add_rope_table(Program& program, int out, const Floats& frequencies, double factor) {
  program.ops.push_back({out, RopeTableOp{vector_of(frequencies), factor}});
}

void add_rms_norm(Program& program, int out, int x, const Floats& weight, int64_t width,
                  float eps) {
  program.ops.push_back({out, RmsNormOp{x, vector_of(weight), width, eps}});
}

Order order_of(const std::optional<Ints>& order) {
  if (!order) return nullptr;
  return std::make_shared<const std::vector<int32_t>>(order->data(), order->data() + order->size());
}

void add_linear(Program& program, int out, int x, const Shared& weight,
                const std::optional<Floats>& bias, const std::string& activations,
                float input_scale, const std::optional<Ints>& order) {
  program.ops.push_back({out, LinearOp{x, matrix_of(weight), bias ? vector_of(*bias) : Vector{},
                                       rounding_named(activations), input_scale, order_of(order)}});
}

void add_rope(Program& program, int out, int x, int table, int64_t head_dim) {
  program.ops.push_back({out, RopeOp{x, table, head_dim}});
}

void add_hadamard(Program& program, int out, int x, int64_t head_dim) {
  program.ops.push_back({out, HadamardOp{x, head_dim}});
}

void add_attention(Program& program, int out, int q, int k, int v, int layer, int64_t heads,
                   int64_t kv_heads, int64_t head_dim, float scale, int64_t window, float softcap) {
  program.ops.push_back(
      {out, AttentionOp{q, k, v, layer, heads, kv_heads, head_dim, scale, window, softcap}});
}

void add_gated_activation(Program& program, int out, int gate, int up,
                          const std::string& activation) {
  program.ops.push_back({out, GatedOp{gate, up, activation_named(activation)}});
}

// `experts`: of each gate, up and down, then how the input of each is rounded, and the static
// scales of the input of gate and up and of that of down, and the orders of both inputs.
void add_mixture(Program& program, int out, int x, int router, const nb::list& experts,
                 int64_t used, bool normalized, const std::string& activation) {
  MixtureOp mixture{x, router, {}, used, normalized, activation_named(activation)};
  mixture.experts.reserve(experts.size());
  for (const nb::handle item : experts) {
    const auto fields = nb::cast<nb::tuple>(item);
    const auto matrix = [&](size_t i) { return matrix_of(nb::cast<Shared>(fields[i])); };
    const auto rounding = [&](size_t i) {
      return rounding_named(nb::cast<std::string>(fields[i]));
    };
    const auto order = [&](size_t i) { return order_of(nb::cast<std::optional<Ints>>(fields[i])); };
    mixture.experts.push_back({matrix(0), matrix(1), matrix(2), rounding(3), rounding(4),
                               rounding(5), nb::cast<float>(fields[6]), nb::cast<float>(fields[7]),
                               order(8), order(9)});
  }
  program.ops.push_back({out, std::move(mixture)});
}

void add_add(Program& program, int out, int x, int y) { program.ops.push_back({out, AddOp{x, y}}); }

void add_select_rows(Program& program, int out, int x) {
  program.ops.push_back({out, SelectRowsOp{x}});
}

void add_softcap(Program& program, int out, int x, float cap) {
  program.ops.push_back({out, SoftcapOp{x, cap}});
}

int add_buffer(Program& program, int64_t width, bool tapped) {
  program.buffers.push_back({width, tapped});
  return static_cast<int>(program.buffers.size()) - 1;
}

void make_program(Program* program, int64_t layers, int64_t vocabulary, int64_t context,
                  const std::string& cache_type) {
  new (program) Program{{}, {}, -1, layers, vocabulary, context, cache_named(cache_type)};
}

void bind_program(nb::module_& module) {
  using nb::arg;
  nb::class_<Program>(module, "Program", "A Program whose buffers are numbers, filled op by op.")
      .def("__init__", &make_program, arg("layers"), arg("vocabulary"), arg("context"),
           arg("cache_type"))
      .def("buffer", &add_buffer, arg("width"), arg("tapped"))
      .def("given", &add_given, arg("out"))
      .def("embed", &add_embed, arg("out"), arg("weight"), arg("scale"))
      .def("rope_table", &add_rope_table, arg("out"), arg("frequencies"), arg("factor"))
      .def("rms_norm", &add_rms_norm, arg("out"), arg("x"), arg("weight"), arg("width"), arg("eps"))
      .def("linear", &add_linear, arg("out"), arg("x"), arg("weight"), arg("bias").none(),
           arg("activations"), arg("input_scale") = 0.0f, arg("order").none() = nb::none())
      .def("rope", &add_rope, arg("out"), arg("x"), arg("table"), arg("head_dim"))
      .def("hadamard", &add_hadamard, arg("out"), arg("x"), arg("head_dim"))
      .def("attention", &add_attention, arg("out"), arg("q"), arg("k"), arg("v"), arg("layer"),
           arg("heads"), arg("kv_heads"), arg("head_dim"), arg("scale"), arg("window"),
           arg("softcap"))
      .def("gated_activation", &add_gated_activation, arg("out"), arg("gate"), arg("up"),
           arg("activation"))
      .def("mixture", &add_mixture, arg("out"), arg("x"), arg("router"), arg("experts"),
           arg("used"), arg("normalized"), arg("activation"))
      .def("add", &add_add, arg("out"), arg("x"), arg("y"))
      .def("select_rows", &add_select_rows, arg("out"), arg("x"))
      .def("softcap", &add_softcap, arg("out"), arg("x"), arg("cap"))
      .def_rw("logits", &Program::logits);
}

// Fills `step` from the Python lists; `held` keeps the arrays alive while it runs.
void read_step(StepInput& step, std::vector<Ints>& held, const Ints& tokens, const nb::list& spans,
               const Ints& wanted) {
  step.tokens = tokens.data();
  step.rows = static_cast<int64_t>(tokens.size());
  step.wanted = wanted.data();
  step.wanted_count = static_cast<int64_t>(wanted.size());
  step.spans.reserve(spans.size());
  held.reserve(spans.size());
  for (const nb::handle item : spans) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 5) {
      throw std::invalid_argument("span " + std::to_string(step.spans.size()) +
                                  " must have a start, count, position, pages and trunk.");
    }
    held.push_back(nb::cast<Ints>(fields[3]));
    Span span{0, 0, 0, held.back().data(), static_cast<int64_t>(held.back().size())};
    const bool fit = nb::try_cast(fields[0], span.start) && nb::try_cast(fields[1], span.count) &&
                     nb::try_cast(fields[2], span.position) && nb::try_cast(fields[4], span.trunk);
    if (!fit) {
      throw std::invalid_argument("start, count, position and trunk of span " +
                                  std::to_string(step.spans.size()) +
                                  " must be integers of 64 bits.");
    }
    step.spans.push_back(span);
  }
}

// The array keeps the memory: a later step may write over it, but never frees it.
Rows2d as_array(const Rows& rows) {
  static const float nothing = 0.0f;
  const float* data = rows.data ? rows.data : &nothing;
  using Memory = std::shared_ptr<const void>;
  nb::capsule owner(new Memory(rows.memory),
                    [](void* p) noexcept { delete static_cast<Memory*>(p); });
  return {data, {static_cast<size_t>(rows.rows), static_cast<size_t>(rows.width)}, owner};
}

// Binds the arrays of [(buffer, float32 [rows, width]), ..]; `rows` is what each must have. None is
// converted: a copy would be gone, with what is written to it, before the step has run.
template <class Array>
void bind_rows(StepInput& step, const Program& program, const nb::list& list, int64_t rows) {
  for (const nb::handle item : list) {
    const auto fields = nb::cast<nb::tuple>(item);
    const auto buffer = nb::cast<int>(fields[0]);
    Array array;
    if (!nb::try_cast(fields[1], array, false)) {
      throw std::invalid_argument("what is bound to buffer " + std::to_string(buffer) +
                                  " is no contiguous float32 array of rows.");
    }
    const bool known = buffer >= 0 && buffer < static_cast<int>(program.buffers.size());
    if (!known || static_cast<int64_t>(array.shape(0)) != rows ||
        static_cast<int64_t>(array.shape(1)) != program.buffers[buffer].width) {
      throw std::invalid_argument("rows of another shape than buffer " + std::to_string(buffer) +
                                  " has are bound to it.");
    }
    step.bound.push_back({buffer, const_cast<float*>(array.data())});
  }
}

using ReadRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WriteRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// `given` has the rows of the buffers that the caller brings, and keeps them alive.
Rows2d run_step(Executor& executor, const Ints& tokens, const nb::list& spans, const Ints& wanted,
                const nb::list& given) {
  StepInput step;
  std::vector<Ints> held;
  read_step(step, held, tokens, spans, wanted);
  bind_rows<ReadRows>(step, executor.program(), given, step.rows);
  Rows logits;
  {
    nb::gil_scoped_release release;
    logits = executor.step(step);
  }
  return as_array(logits);
}

// Every row is wanted; the lists keep their arrays alive while the step runs.
void run_segment(Executor& executor, const Ints& tokens, const nb::list& spans, const Ints& wanted,
                 const nb::list& given, const nb::list& results) {
  StepInput step;
  std::vector<Ints> held;
  read_step(step, held, tokens, spans, wanted);
  bind_rows<ReadRows>(step, executor.program(), given, step.rows);
  bind_rows<WriteRows>(step, executor.program(), results, step.rows);
  if (step.wanted_count != step.rows) throw std::invalid_argument("every row must be wanted.");
  nb::gil_scoped_release release;
  executor.step(step);
}

Rows2d read_tap(const Executor& executor, int buffer) {
  Rows rows;
  {
    nb::gil_scoped_release release;
    rows = executor.tap(buffer);
  }
  return as_array(rows);
}

std::shared_ptr<ThreadPool> make_pool(int threads) {
  if (threads < 1 || threads > 1024) {
    throw std::invalid_argument("threads is " + std::to_string(threads) +
                                "; it must be between 1 and 1024.");
  }
  try {
    return std::make_shared<ThreadPool>(threads);
  } catch (const std::system_error& error) {
    throw std::invalid_argument("the system cannot start " + std::to_string(threads) +
                                " threads (" + error.code().message() + "); ask for fewer.");
  }
}

// A copy of a page: keys and values of all layers, as they lie in the store.
nb::bytes read_page(const Executor& executor, int64_t page) {
  const KvStore& store = executor.store();
  if (page < 0 || page >= store.pages())
    throw std::invalid_argument("page is " + std::to_string(page) + "; the store has " +
                                std::to_string(store.pages()) + ".");
  return nb::bytes(store.page(page), store.page_stride());
}

}  // namespace

void bind_executor(nb::module_& module) {
  using nb::arg;
  nb::class_<ThreadPool>(module, "ThreadPool", "Threads that run steps, the caller included.")
      .def(nb::new_(&make_pool), arg("threads"))
      .def_prop_ro("size", &ThreadPool::size);
  bind_program(module);
  nb::class_<Executor>(module, "Executor", "Runs steps of one Program over a KV store.")
      .def(
          "__init__",
          [](Executor* executor, const Program& program, int64_t pages,
             std::shared_ptr<ThreadPool> pool, const std::string& isa) {
            if (pages < 1) throw std::invalid_argument("the KV store needs at least one page.");
            new (executor) Executor(program, pages, std::move(pool), isa_named(isa));
          },
          arg("program"), arg("pages"), arg("pool"), arg("isa"))
      .def(nb::init<const Program&, const Executor&>(), arg("program"), arg("beside"))
      .def("step", &run_step, arg("tokens"), arg("spans"), arg("wanted"), arg("given") = nb::list())
      .def("run", &run_segment, arg("tokens"), arg("spans"), arg("wanted"), arg("given"),
           arg("results"))
      .def("tap", &read_tap, arg("buffer"))
      .def_prop_ro("pages", &Executor::pages)
      .def_prop_ro("store_bytes", &Executor::store_bytes)
      .def("page", &read_page, arg("page"))
      .def_prop_ro("workspace_bytes", &Executor::workspace_bytes);
}

}  // namespace fewbit
