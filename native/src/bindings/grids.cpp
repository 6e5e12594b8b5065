// Solvers that know how formats store scales; fewbit.methods is their only user and documents them.

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "executor/thread_pool.h"
#include "solvers/block_search.h"
#include "solvers/refine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbit {
namespace {

template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tiles = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T>
using Part = std::optional<Matrix<T>>;
using Range = std::tuple<float, float>;

template <class Array>
bool shaped(const Array& matrix, int64_t rows, int64_t columns) {
  return static_cast<int64_t>(matrix.shape(0)) == rows &&
         static_cast<int64_t>(matrix.shape(1)) == columns;
}

ScaleStorage storage_named(const std::string& name) {
  if (name == "f16") return ScaleStorage::kF16;
  if (name == "f32") return ScaleStorage::kF32;
  require(name == "e8m0", "scales are stored as f16, f32 or e8m0");
  return ScaleStorage::kE8m0;
}

OffsetKind offset_named(const std::string& name) {
  if (name == "none") return OffsetKind::kNone;
  if (name == "value") return OffsetKind::kValue;
  if (name == "steps") return OffsetKind::kSteps;
  require(name == "zero", "offsets are none, value, steps or zero");
  return OffsetKind::kZero;
}

// A format's grid with the memory of its levels.
class OwnedShape {
 public:
  OwnedShape(std::vector<float> levels, std::vector<float> midpoints, int64_t group, int64_t block,
             const std::string& scale_type, const std::string& offset, const Range& steps,
             const Range& offset_steps)
      : levels_(std::move(levels)), midpoints_(std::move(midpoints)) {
    require(!levels_.empty() && levels_.size() <= 256 &&
                (midpoints_.empty() || midpoints_.size() + 1 == levels_.size()),
            "there must be 1 to 256 levels, and a midpoint between neighbours or none");
    require(group > 0 && block > 0 && block % group == 0 && block / group <= kMostSteps,
            "1 to 16 groups must make a block");
    const auto [low, high] = steps;
    const auto [offset_low, offset_high] = offset_steps;
    shape_ = {{},
              group,
              block,
              storage_named(scale_type),
              offset_named(offset),
              {low, high},
              {offset_low, offset_high}};
  }

  GridShape shape() const {
    GridShape shape = shape_;
    shape.levels = {levels_.data(), midpoints_.empty() ? nullptr : midpoints_.data(),
                    static_cast<int64_t>(levels_.size())};
    return shape;
  }

 private:
  std::vector<float> levels_, midpoints_;
  GridShape shape_;
};

template <class T>
T* part_of(const Part<T>& part, bool wanted, int64_t rows, int64_t columns) {
  require(part.has_value() == wanted, "the grid must have the parts of its layout");
  require(!wanted || shaped(*part, rows, columns), "a part of the grid has another shape");
  return wanted ? part->data() : nullptr;
}

auto refine(ThreadPool& pool, const OwnedShape& layout, const Matrix<const float>& gram,
            const Vector<const float>& added, const Matrix<const float>& weights,
            const Matrix<uint8_t>& codes, const Matrix<float>& scale, const Part<int16_t>& steps,
            const Part<float>& offset, const Part<int16_t>& offset_steps, int64_t span, int rounds,
            const std::optional<std::string>& isa) {
  const GridShape shape = layout.shape();
  const auto rows = static_cast<int64_t>(weights.shape(0));
  const auto columns = static_cast<int64_t>(weights.shape(1));
  require(shaped(gram, columns, columns) && static_cast<int64_t>(added.shape(0)) == columns &&
              shaped(codes, rows, columns),
          "the Gram matrix and the codes must be as wide as the weights");
  require(columns % shape.block == 0 && span > 0 && span % shape.block == 0,
          "columns and spans must be whole blocks");
  const int64_t blocks = columns / shape.block, groups = columns / shape.group;
  require(shaped(scale, rows, blocks), "there must be a scale for each block");
  const bool integers = shape.offset == OffsetKind::kSteps || shape.offset == OffsetKind::kZero;
  const StoredGrid grid{codes.data(), scale.data(),
                        part_of(steps, shape.two_levels(), rows, groups),
                        part_of(offset, shape.free_offsets(), rows, blocks),
                        part_of(offset_steps, integers, rows, groups)};
  const uint8_t* all = codes.data();
  require(std::all_of(all, all + rows * columns,
                      [&](uint8_t code) { return code < shape.levels.count; }),
          "a code has no level");
  const RefineTask task{gram.data(), added.data(), columns, weights.data(),
                        rows,        shape,        span,    rounds};
  const Isa chosen = isa ? isa_named(*isa) : best_rounding_isa();
  auto changes = new_array<double, 1>({static_cast<size_t>(rows)});
  const nb::gil_scoped_release release;
  refine_rows(task, grid, changes.data(), chosen, pool);
  return changes;
}

// The grid, [tiles, blocks or groups, 64] each part, of the columns `first`.. of a span of targets.
nb::tuple search_block(ThreadPool& pool, const OwnedShape& layout, const Tiles& targets,
                       int64_t first, const Vector<const int32_t>& places,
                       const Vector<const float>& importance,
                       const std::optional<std::string>& isa) {
  const GridShape shape = layout.shape();
  const auto width = static_cast<int64_t>(targets.shape(1));
  require(targets.shape(2) == kRoundingRows && first >= 0 && first + shape.block <= width,
          "the columns must lie in targets, tiles of 64 rows");
  require(static_cast<int64_t>(places.shape(0)) == shape.block &&
              static_cast<int64_t>(importance.shape(0)) == shape.block,
          "there must be a place and an importance for each column of a block");
  require(std::all_of(places.data(), places.data() + shape.block,
                      [&](int32_t place) { return place >= 0 && place < shape.block; }),
          "a place lies outside the block");
  const bool offsets = shape.offset == OffsetKind::kSteps;
  require(shape.storage == ScaleStorage::kF16 &&
              (shape.two_levels() ? offsets || shape.offset == OffsetKind::kNone
                                  : shape.offset == OffsetKind::kNone),
          "the search knows formats with units of 16 bits, without zero points");
  const size_t tiles = targets.shape(0), groups = static_cast<size_t>(shape.block / shape.group);
  const size_t one[3] = {tiles, 1, kRoundingRows}, each[3] = {tiles, groups, kRoundingRows};
  auto scale = new_array<float, 3>(one), offset = new_array<float, 3>(one);
  auto steps = new_array<float, 3>(each), offset_steps = new_array<float, 3>(each);
  const BlockTask task{shape, importance.data(), places.data()};
  const RoundingKernels& kernels = rounding_kernels(isa ? isa_named(*isa) : best_rounding_isa());
  {
    const nb::gil_scoped_release release;
    std::atomic<size_t> next{0};
    pool.run([&](int) {
      for (size_t tile = next++; tile < tiles; tile = next++) {
        const size_t whole = tile * kRoundingRows, part = whole * groups;
        kernels.search_block(
            task, targets.data() + (static_cast<int64_t>(tile) * width + first) * kRoundingRows,
            {scale.data() + whole, offset.data() + whole, steps.data() + part,
             offset_steps.data() + part});
      }
    });
  }
  return nb::make_tuple(scale, shape.two_levels() ? nb::cast(steps) : nb::none(),
                        offsets ? nb::cast(offset) : nb::none(),
                        offsets ? nb::cast(offset_steps) : nb::none());
}

}  // namespace

void bind_grids(nb::module_& module) {
  nb::class_<OwnedShape>(module, "GridShape")
      .def(nb::init<std::vector<float>, std::vector<float>, int64_t, int64_t, const std::string&,
                    const std::string&, const Range&, const Range&>(),
           nb::kw_only(), "levels"_a, "midpoints"_a, "group"_a, "block"_a, "scale_type"_a,
           "offset"_a, "steps"_a, "offset_steps"_a);
  module.def("search_block", &search_block, "pool"_a, "shape"_a, "targets"_a, "first"_a,
             nb::kw_only(), "places"_a, "importance"_a, "isa"_a = nb::none());
  module.def("refine_rows", &refine, "pool"_a, "shape"_a, nb::kw_only(), "gram"_a, "added"_a,
             "weights"_a, "codes"_a.noconvert(), "scale"_a.noconvert(),
             "steps"_a.noconvert().none(), "offset"_a.noconvert().none(),
             "offset_steps"_a.noconvert().none(), "span"_a, "rounds"_a, "isa"_a = nb::none());
}

}  // namespace fewbit
