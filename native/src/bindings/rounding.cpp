// The solvers' inner loops; fewbit.methods is their only user and documents them.
#include "solvers/rounding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <optional>
#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "executor/thread_pool.h"
#include "solvers/factor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbit {
namespace {

using Factor = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tiles = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using MutableTiles = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using CodeTiles = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Groups = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableFactor = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableVector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Diagonal = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
bool shaped(const Array& array, int64_t tiles, int64_t columns) {
  return static_cast<int64_t>(array.shape(0)) == tiles &&
         static_cast<int64_t>(array.shape(1)) == columns &&
         static_cast<int64_t>(array.shape(2)) == kRoundingRows;
}

const RoundingKernels& kernels_named(const std::optional<std::string>& isa) {
  return rounding_kernels(isa ? isa_named(*isa) : best_rounding_isa());
}

// Calls job(tile) for every tile, the tiles dealt out to the pool's threads.
template <class Job>
void each_tile(ThreadPool& pool, int64_t tiles, const Job& job) {
  const nb::gil_scoped_release release;
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t tile = next++; tile < tiles; tile = next++) job(tile);
  });
}

void advance(ThreadPool& pool, const Factor& factor, const Tiles& errors,
             const MutableTiles& targets, int64_t first, int64_t from, int64_t to,
             const std::optional<std::string>& isa) {
  const auto tiles = static_cast<int64_t>(errors.shape(0));
  const auto columns = static_cast<int64_t>(factor.shape(1));
  const auto width = static_cast<int64_t>(targets.shape(1));
  require(shaped(errors, tiles, columns) && shaped(targets, tiles, width),
          "errors and targets must be tiles of 64 rows of the factor's columns");
  require(0 <= first && first + width <= static_cast<int64_t>(factor.shape(0)) && 0 <= from &&
              from <= to && to <= columns,
          "a range reaches beyond the factor");
  const RoundingKernels& kernels = kernels_named(isa);
  each_tile(pool, tiles, [&](int64_t tile) {
    kernels.advance(factor.data(), columns, errors.data() + tile * columns * kRoundingRows,
                    targets.data() + tile * width * kRoundingRows, first, first + width, from, to);
  });
}

void check_groups(const Groups& groups, int64_t scales) {
  const auto columns = static_cast<int64_t>(groups.shape(0));
  for (int64_t j = 0; j < columns; ++j)
    require(groups.data()[j] >= 0 && groups.data()[j] < scales, "a group has no scale");
}

void round_columns(ThreadPool& pool, const Factor& factor, const Tiles& weights,
                   const MutableTiles& errors, const MutableTiles& targets, const CodeTiles& codes,
                   const Tiles& scales, const std::optional<Tiles>& offsets, const Groups& groups,
                   int64_t origin, int64_t first, const Vector& levels,
                   const std::optional<Vector>& midpoints, const std::optional<std::string>& isa) {
  const auto tiles = static_cast<int64_t>(weights.shape(0));
  const auto columns = static_cast<int64_t>(factor.shape(1));
  const auto width = static_cast<int64_t>(targets.shape(1));
  const auto scaled = static_cast<int64_t>(scales.shape(1));
  require(shaped(weights, tiles, columns) && shaped(errors, tiles, columns) &&
              shaped(codes, tiles, columns) && shaped(targets, tiles, width) &&
              shaped(scales, tiles, scaled) && (!offsets || shaped(*offsets, tiles, scaled)),
          "every matrix must be tiles of 64 rows of the factor's columns");
  const int64_t end = origin + width;
  const int64_t last = first + static_cast<int64_t>(groups.shape(0));
  require(
      0 <= origin && origin <= first && last <= end && end <= static_cast<int64_t>(factor.shape(0)),
      "the columns to round must lie in the span of the targets, and that in the factor");
  require(0 < levels.shape(0) && levels.shape(0) <= 256 &&
              (!midpoints || midpoints->shape(0) + 1 == levels.shape(0)),
          "there must be 1 to 256 levels, and a midpoint between neighbours");
  check_groups(groups, scaled);
  const Levels given{levels.data(), midpoints ? midpoints->data() : nullptr,
                     static_cast<int64_t>(levels.shape(0))};
  const RoundingKernels& kernels = kernels_named(isa);
  each_tile(pool, tiles, [&](int64_t tile) {
    const int64_t all = tile * columns * kRoundingRows;
    const int64_t some = tile * scaled * kRoundingRows;
    const RoundingTile one{
        weights.data() + all, errors.data() + all,  targets.data() + tile * width * kRoundingRows,
        codes.data() + all,   scales.data() + some, offsets ? offsets->data() + some : nullptr};
    kernels.round(one, factor.data(), columns, origin, end, first, last, groups.data(), given);
  });
}

// Scales and offsets, [tiles, 1, 64] each, of the columns from `first` on of a span of targets.
nb::tuple search_scales(ThreadPool& pool, const Tiles& targets, int64_t first,
                        const Vector& importance, float low, float high, bool shifts,
                        const std::optional<std::string>& isa) {
  const auto tiles = static_cast<int64_t>(targets.shape(0));
  const auto width = static_cast<int64_t>(targets.shape(1));
  const auto columns = static_cast<int64_t>(importance.shape(0));
  require(shaped(targets, tiles, width) && first >= 0 && columns > 0 && first + columns <= width,
          "the columns must lie in targets, tiles of 64 rows");
  const ScaleTask task{columns, importance.data(), low, high, shifts};
  const size_t shape[3] = {targets.shape(0), 1, static_cast<size_t>(kRoundingRows)};
  auto scales = new_array<float, 3>(shape);
  auto offsets = new_array<float, 3>(shape);
  const RoundingKernels& kernels = kernels_named(isa);
  each_tile(pool, tiles, [&](int64_t tile) {
    kernels.search(task, targets.data() + (tile * width + first) * kRoundingRows,
                   scales.data() + tile * kRoundingRows, offsets.data() + tile * kRoundingRows);
  });
  return nb::make_tuple(scales, offsets);
}

// Whether the matrix is positive definite; only then do the results mean anything.
bool factor(ThreadPool& pool, const Factor& matrix, const Order& order, double unit,
            const Diagonal& diagonal, const MutableFactor& feedback, const MutableVector& variance,
            const std::optional<std::string>& isa) {
  const size_t columns = matrix.shape(0);
  require(matrix.shape(1) == columns && order.shape(0) == columns && diagonal.shape(0) == columns &&
              feedback.shape(0) == columns && feedback.shape(1) == columns &&
              variance.shape(0) == columns && columns > 0,
          "the matrix must be square, and the rest as wide");
  for (size_t j = 0; j < columns; ++j)
    require(order.data()[j] >= 0 && order.data()[j] < static_cast<int64_t>(columns),
            "the order names a row that the matrix does not have");
  const Permuted input{matrix.data(), static_cast<int64_t>(columns), order.data(), unit,
                       diagonal.data()};
  const Isa chosen = isa ? isa_named(*isa) : best_rounding_isa();
  const nb::gil_scoped_release release;
  return factor_lower(input, {feedback.data(), variance.data()}, chosen, pool);
}

}  // namespace

void bind_rounding(nb::module_& module) {
  module.attr("rounding_tile_rows") = kRoundingRows;
  module.def("advance_targets", &advance, "pool"_a, "factor"_a, "errors"_a, "targets"_a, "first"_a,
             "start"_a, "stop"_a, "isa"_a = nb::none());
  module.def("round_columns", &round_columns, "pool"_a, nb::kw_only(), "factor"_a, "weights"_a,
             "errors"_a, "targets"_a, "codes"_a, "scales"_a, "offsets"_a.none(), "groups"_a,
             "origin"_a, "first"_a, "levels"_a, "midpoints"_a.none(), "isa"_a = nb::none());
  module.def("search_scales", &search_scales, "pool"_a, "targets"_a, "first"_a, nb::kw_only(),
             "importance"_a, "low"_a, "high"_a, "shifts"_a, "isa"_a = nb::none());
  module.def("factor_hessian", &factor, "pool"_a, nb::kw_only(), "gram"_a, "order"_a, "unit"_a,
             "diagonal"_a, "feedback"_a, "variance"_a, "isa"_a = nb::none());
}

}  // namespace fewbit
