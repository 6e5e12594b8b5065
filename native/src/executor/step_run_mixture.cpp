// A step's mixtures of experts: routing, gathering rows by expert, and summing what experts give.
#include <algorithm>

#include "executor/step_run.h"

namespace fewbit {

namespace {

constexpr size_t index_of(InputRounding rounding) { return static_cast<size_t>(rounding); }

int64_t tiles_end(int64_t column) { return (column + kTileRows - 1) / kTileRows; }

}  // namespace

Routes StepRun::routes(int value, const Task& task) const {
  const Value& at = executor_.plan_.values[value];
  return routes_in(executor_.workspace_.data() + at.offset, task.chunk.rows, at.per_row, at.width);
}

float* StepRun::choices(int value) const {
  return reinterpret_cast<float*>(executor_.workspace_.data() +
                                  executor_.plan_.values[value].offset);
}

Places StepRun::places_in(const Routes& routes, size_t expert, const Task& task) {
  return places_of(routes, static_cast<int64_t>(expert), task.region.row_begin - task.chunk.begin,
                   task.region.row_end - task.chunk.begin);
}

void StepRun::run(const RouteStep& step, const Task& task) {
  const MixtureOp& mixture = *step.mixture;
  const View logits = view(mixture.router, task);
  const Routes routes = this->routes(task.out, task);
  for_rows(task, [&](int64_t row) {
    const int64_t first = (row - task.chunk.begin) * routes.used;
    executor_.ops_.route(logits.at(row, 0), routes.experts, routes.used, mixture.normalized,
                         routes.chosen + first, routes.weights + first);
  });
  sort_choices(routes);
}

void StepRun::run(const GatherStep& step, const Task& task) {
  const View x = view(step.mixture->x, task);
  const Routes routes = this->routes(step.routes, task);
  const int64_t width = executor_.plan_.values[task.out].width;
  for_rows(task, [&](int64_t row) {
    const int64_t first = (row - task.chunk.begin) * routes.used;
    for (int64_t rank = 0; rank < routes.used; ++rank) {
      const Expert& expert = step.mixture->experts[routes.chosen[first + rank]];
      round_choice({step.rounding, expert.input_scale, expert.input_order.get()}, x.at(row, 0),
                   task.out, task, routes.places[first + rank], 0, width);
    }
  });
}

// Rounds columns [begin, end) of a row into its place of a value that has a row for each choice.
void StepRun::round_choice(const Rounding& rounding, const float* x, int value, const Task& task,
                           int64_t place, int64_t begin, int64_t end) const {
  switch (rounding.kind) {
    case InputRounding::kNone:
      std::copy_n(x, end - begin,
                  choices(value) + place * executor_.plan_.values[value].width + begin);
      return;
    case InputRounding::kInt8Run:
    case InputRounding::kInt8Row:
    case InputRounding::kInt8Static:
      quantize_columns(activations(value, task), rounding, x, place, begin, end);
      return;
    case InputRounding::kBfloat16:
      round_columns(bfloats(value, task), rounding, x, place, begin, end);
      return;
    case InputRounding::kSplit:
      executor_.split_->split(x, end - begin, pieces(value, task), place, begin);
      return;
  }
}

// Outputs [begin, end) of a matrix of an expert for its rows at `places`; the output of a place and
// a column lies at out[place * stride + column].
void StepRun::multiply_choices(const PackedMatrix& weight, InputRounding rounding,
                               const ByRounding& x, const Task& task, const Places& places,
                               float* out, int64_t stride) const {
  const int value = x[index_of(rounding)];
  const int64_t tile = task.region.column_begin / kTileRows;
  const int64_t tile_end = tiles_end(task.region.column_end);
  if (rounding == InputRounding::kBfloat16) {
    executor_.weight_only_.multiply(weight, tile, tile_end, bfloats(value, task), places.begin,
                                    places.end, nullptr, out, stride);
    return;
  }
  if (rounding == InputRounding::kSplit) {
    executor_.split_->multiply(weight, tile, tile_end, pieces(value, task), places.begin,
                               places.end, nullptr, out, stride);
    return;
  }
  const Activations rows = is_int8(rounding)
                               ? activations(value, task)
                               : float_activations(choices(value), rows_of(value, task),
                                                   executor_.plan_.values[value].width);
  executor_.linear_.multiply(weight, tile, tile_end, rows, places.begin, places.end, nullptr, out,
                             stride);
}

void StepRun::run(const ExpertsGateStep& step, const Task& task) {
  const MixtureOp& mixture = *step.mixture;
  const Routes routes = this->routes(step.routes, task);
  const int64_t most =
      std::max<int64_t>(1, kUnitElements / (task.region.column_end - task.region.column_begin));
  for (size_t i = 0; i < mixture.experts.size(); ++i) {
    const Expert& expert = mixture.experts[i];
    if (expert.down_rounding != step.rounding) continue;
    const Places all = places_in(routes, i, task);
    for (int64_t place = all.begin; place < all.end; place += most) {
      run_gate(step, expert, task, {place, std::min(place + most, all.end)});
    }
  }
}

// Gate, up and their product for rows that fit the thread's scratch.
void StepRun::run_gate(const ExpertsGateStep& step, const Expert& expert, const Task& task,
                       const Places& places) const {
  const int64_t begin = task.region.column_begin;
  const int64_t columns = task.region.column_end - begin;
  auto* gate = reinterpret_cast<float*>(executor_.scratch_[task.thread].data());
  float* up = gate + std::max(kUnitElements, columns);
  const int64_t origin = places.begin * columns + begin;
  multiply_choices(*expert.gate, expert.gate_rounding, step.x, task, places, gate - origin,
                   columns);
  multiply_choices(*expert.up, expert.up_rounding, step.x, task, places, up - origin, columns);
  const auto activate = step.mixture->activation == Activation::kSilu ? executor_.ops_.silu_gate
                                                                      : executor_.ops_.gelu_gate;
  activate(gate, up, places.count() * columns, gate);
  for (int64_t i = 0; i < places.count(); ++i) {
    round_choice({step.rounding, expert.inner_scale, expert.inner_order.get()}, gate + i * columns,
                 task.out, task, places.begin + i, begin, begin + columns);
  }
}

void StepRun::run(const ExpertsDownStep& step, const Task& task) {
  const MixtureOp& mixture = *step.mixture;
  const Routes routes = this->routes(step.routes, task);
  const int64_t width = executor_.plan_.values[step.products].width;
  float* products = choices(step.products);
  for (size_t i = 0; i < mixture.experts.size(); ++i) {
    const Places places = places_in(routes, i, task);
    if (places.count() == 0) continue;
    multiply_choices(*mixture.experts[i].down, mixture.experts[i].down_rounding, step.x, task,
                     places, products, width);
  }
  const View out = view(task.out, task);
  const int64_t begin = task.region.column_begin;
  const int64_t columns = task.region.column_end - begin;
  for_rows(task, [&](int64_t row) {
    float* sum = out.at(row, begin);
    std::fill_n(sum, columns, 0.0f);
    const int64_t first = (row - task.chunk.begin) * routes.used;
    for (int64_t choice = first; choice < first + routes.used; ++choice) {
      executor_.ops_.add_scaled(products + routes.places[choice] * width + begin,
                                routes.weights[choice], columns, sum);
    }
  });
}

}  // namespace fewbit
