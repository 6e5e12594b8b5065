// The scales of a span of columns in closed form (refine.h), over S.
#pragma once

#include <cstring>

#include "simd/simd.h"
#include "solvers/refine_grid_impl.h"
#include "solvers/refine_solve_impl.h"
#include "solvers/refine_span_impl.h"

namespace fewbit {

// Changing the errors by d changes the loss by d H d + 2 d H e, and with all codes held -d is a
// combination of each group's levels (and of ones, where offsets are free): a quadratic form of so
// many unknowns.
template <class S>
class SpanScales {
 public:
  // `sums`: as RefineKernels::tile has them.
  SpanScales(const Span<S>& span, const float* sums)
      : span_(span), memory_(span.memory), sums_(sums), lanes_{span.task.shape} {}

  // Takes better scales in the rows where there are such; errors and slopes follow. What that
  // changes of each row's loss is added to `changes` [64].
  void improve(float* changes) const {
    for (int64_t group = 0; group < count_; ++group) equations(group);
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes) {
      if (free_) offset_equations(lane);
      propose(lane);
      move(lane);
    }
    float* products = memory_.products;
    std::memset(products, 0, static_cast<size_t>(columns_ * kRoundingRows) * sizeof(float));
    Rounding<S>::advance(span_.corner(), span_.task.columns, memory_.moves, products, 0, columns_,
                         0, columns_);
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes) accept(lane, changes + lane);
  }

 private:
  using F32 = typename S::F32;

  float* cell(int64_t i, int64_t k) const {
    return memory_.matrix + (i * unknowns_ + k) * kRoundingRows;
  }
  SmallSystem<S> system(int64_t lane) const {
    return {memory_.matrix + lane, memory_.right + lane, memory_.solution + lane,
            memory_.roots + lane, unknowns_};
  }

  // A group's row of the system, as far as it concerns scales: its levels times H times those of
  // the groups from it on.
  void equations(int64_t group) const {
    const int64_t from = group * group_, to = from + group_;
    float* products = memory_.products;
    std::memset(products, 0,
                static_cast<size_t>((columns_ - from) * kRoundingRows) * sizeof(float));
    Rounding<S>::advance(span_.corner(), span_.task.columns, memory_.levels, products, from,
                         columns_, from, to);
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes) {
      F32 own = S::zero_f32(), right = S::zero_f32();
      for (int64_t j = from; j < to; ++j) {
        const F32 level = S::load(span_.levels(j) + lane);
        own = S::fma(S::mul(S::set1(span_.added(j)), level), level, own);
        right = S::fma(level, span_.slope(j, lane), right);
      }
      S::store(memory_.right + group * kRoundingRows + lane, right);
      for (int64_t other = group; other < count_; ++other) {
        F32 sum = other == group ? own : S::zero_f32();
        for (int64_t j = other * group_; j < (other + 1) * group_; ++j)
          sum = S::fma(S::load(span_.levels(j) + lane),
                       S::load(products + (j - from) * kRoundingRows + lane), sum);
        S::store(cell(group, other) + lane, sum);
      }
    }
  }

  // What concerns offsets: their unknowns follow those of the scales.
  void offset_equations(int64_t lane) const {
    for (int64_t group = 0; group < count_; ++group) {
      F32 right = S::zero_f32();
      for (int64_t j = group * group_; j < (group + 1) * group_; ++j)
        right = S::add(right, span_.slope(j, lane));
      S::store(memory_.right + (count_ + group) * kRoundingRows + lane, right);
      for (int64_t other = 0; other < count_; ++other) {
        F32 mixed = S::zero_f32();
        float both = 0;
        for (int64_t j = group * group_; j < (group + 1) * group_; ++j) {
          const float sum = sums_[(span_.first + j) * width_ + other];
          mixed = S::fma(S::load(span_.levels(j) + lane), S::set1(sum), mixed);
          both += sum;
        }
        S::store(cell(group, count_ + other) + lane, mixed);
        if (other >= group) S::store(cell(count_ + group, count_ + other) + lane, S::set1(both));
      }
    }
  }

  // Scales within a factor of two of those there are, and offsets within a few steps, from the
  // solution; leaves them in `then`.
  void wanted(int64_t lane) const {
    for (int64_t group = 0; group < count_; ++group) {
      const int64_t here = group * kRoundingRows + lane;
      const F32 scale = S::load(memory_.now.scale + here), size = S::abs(scale);
      const F32 step = S::load(memory_.solution + here);
      const F32 least = S::mul(size, S::set1(-0.5f));
      S::store(memory_.then.scale + here, S::add(scale, S::min(S::max(step, least), size)));
      if (!free_) continue;
      const F32 reach = S::mul(size, S::set1(4.0f));
      const F32 shift = S::load(memory_.solution + count_ * kRoundingRows + here);
      S::store(memory_.then.offset + here, S::add(S::load(memory_.now.offset + here),
                                                  S::min(S::max(shift, S::neg(reach)), reach)));
    }
  }

  // Puts the grid to be tried into `tried`.
  void propose(int64_t lane) const {
    const SmallSystem<S> system = this->system(lane);
    system.solve();
    wanted(lane);
    const GridShape& shape = span_.task.shape;
    if (shape.two_levels()) return propose_steps(system, lane);
    for (int64_t here = lane; here < count_ * kRoundingRows; here += kRoundingRows) {
      S::store(memory_.tried.scale + here, lanes_.stored(S::load(memory_.then.scale + here)));
      if (shape.offset == OffsetKind::kValue)
        S::store(memory_.tried.offset + here,
                 GridMath<S>::half(S::load(memory_.then.offset + here)));
      if (shape.offset == OffsetKind::kZero)
        S::store(memory_.tried.offset_steps + here, S::load(memory_.now.zero + here));
    }
  }

  void propose_steps(const SmallSystem<S>& system, int64_t lane) const {
    const GridShape& shape = span_.task.shape;
    const LaneGrid& to = memory_.tried;
    lanes_.fit_units(system, memory_.then.scale + lane, 1, 0, count_, shape.steps, to.scale + lane,
                     to.steps + lane);
    if (free_)
      lanes_.fit_units(system, memory_.then.offset + lane, -1, count_, count_, shape.offset_steps,
                       to.offset + lane, to.offset_steps + lane);
    lanes_.effective(to, memory_.then, count_, lane);
    float* left = memory_.solution + lane;
    leave(system, lane, left);
    lanes_.polish(system, left, 1, 0, count_, shape.steps, to.scale + lane, to.steps + lane);
    if (free_)
      lanes_.polish(system, left, -1, count_, count_, shape.offset_steps, to.offset + lane,
                    to.offset_steps + lane);
  }

  // The system's right side less what going from `now` to `then` takes of it.
  void leave(const SmallSystem<S>& system, int64_t lane, float* left) const {
    for (int64_t i = 0; i < unknowns_; ++i)
      S::store(left + i * kRoundingRows, S::load(memory_.right + i * kRoundingRows + lane));
    for (int64_t k = 0; k < unknowns_; ++k) {
      const bool scale = k < count_;
      const int64_t here = (scale ? k : k - count_) * kRoundingRows + lane;
      const F32 change =
          scale ? S::sub(S::load(memory_.then.scale + here), S::load(memory_.now.scale + here))
                : S::sub(S::load(memory_.then.offset + here), S::load(memory_.now.offset + here));
      for (int64_t i = 0; i < unknowns_; ++i) {
        float* to = left + i * kRoundingRows;
        S::store(to, S::fma(S::neg(system.element(i, k)), change, S::load(to)));
      }
    }
  }

  // How errors would move.
  void move(int64_t lane) const {
    lanes_.effective(memory_.tried, memory_.then, count_, lane);
    for (int64_t j = 0; j < columns_; ++j)
      S::store(memory_.moves + j * kRoundingRows + lane,
               S::sub(span_.error(memory_.then, j, lane), S::load(span_.errors(j) + lane)));
  }

  void accept(int64_t lane, float* changes) const {
    F32 change = S::zero_f32();
    for (int64_t j = 0; j < columns_; ++j) {
      const F32 moved = S::load(memory_.moves + j * kRoundingRows + lane);
      const F32 product = S::load(memory_.products + j * kRoundingRows + lane);
      const F32 bend = S::fma(S::set1(span_.added(j)), moved, product);
      change = S::fma(moved, S::fma(S::set1(2.0f), span_.slope(j, lane), bend), change);
    }
    const auto better = S::less(change, S::zero_f32());
    for (int64_t j = 0; j < columns_; ++j) {
      float *error = span_.errors(j) + lane, *slope = span_.slopes(j) + lane;
      const F32 product = S::load(memory_.products + j * kRoundingRows + lane);
      S::store(error, S::select(better, span_.error(memory_.then, j, lane), S::load(error)));
      S::store(slope, S::add(S::load(slope), S::select(better, product, S::zero_f32())));
    }
    take_grid(better, lane);
    S::store(changes, S::add(S::load(changes), S::select(better, change, S::zero_f32())));
  }

  template <class Mask>
  void take_grid(const Mask& better, int64_t lane) const {
    const LaneGrid to = span_.grid();
    const auto take = [&](const float* from, float* kept, int64_t count) {
      for (int64_t here = lane; here < count * kRoundingRows; here += kRoundingRows)
        S::store(kept + here, S::select(better, S::load(from + here), S::load(kept + here)));
    };
    const LaneGrid& tried = memory_.tried;
    const GridShape& shape = span_.task.shape;
    const int64_t blocks = columns_ / shape.block;
    take(tried.scale, to.scale, blocks);
    if (free_) take(tried.offset, to.offset, blocks);
    if (shape.two_levels()) take(tried.steps, to.steps, count_);
    if (shape.offset == OffsetKind::kSteps) take(tried.offset_steps, to.offset_steps, count_);
    take(memory_.then.scale, memory_.now.scale, count_);
    take(memory_.then.offset, memory_.now.offset, count_);
  }

  const Span<S>& span_;
  const RefineMemory& memory_;
  const float* sums_;
  const GridLanes<S> lanes_;
  const int64_t columns_ = span_.columns(), count_ = span_.count(), group_ = span_.task.shape.group;
  const int64_t width_ = span_.task.span / group_;
  const bool free_ = span_.task.shape.free_offsets();
  const int64_t unknowns_ = free_ ? 2 * count_ : count_;
};

}  // namespace fewbit
