// The storable grid near wanted scales, a row a lane, for refine.h over S. Beside what
// formats/grid/storable.py does, units and steps are chosen by what they cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd/simd.h"
#include "solvers/grid_impl.h"
#include "solvers/refine.h"
#include "solvers/refine_solve_impl.h"

namespace fewbit {

template <class S>
struct GridLanes {
  using F32 = typename S::F32;
  using Math = GridMath<S>;
  // The largest scale takes the outermost step, the one before it, and so on.
  static constexpr int kUnits = 6;

  const GridShape& shape;

  // The nearest power of two, at least 2^-128, whatever the sign.
  static float power_of_two(float x) {
    int exponent = 0;
    const float part = std::frexp(std::max(std::abs(x), 0x1p-128f), &exponent);
    const int nearest = part < 0.70710678f ? exponent - 1 : exponent;
    return std::ldexp(1.0f, std::min(nearest, 127));
  }

  F32 stored(F32 scale) const {
    if (shape.storage == ScaleStorage::kF16) return Math::half(scale);
    if (shape.storage == ScaleStorage::kF32) return scale;
    float lanes[kLanes];
    S::store(lanes, scale);
    for (float& lane : lanes) lane = power_of_two(lane);
    return S::load(lanes);
  }

  // What a grid's groups [0, count) come to, `lane` on.
  void effective(const LaneGrid& grid, const LaneScales& to, int64_t count, int64_t lane) const {
    const int64_t groups = shape.block / shape.group;
    for (int64_t g = 0; g < count; ++g) {
      const int64_t here = g * kRoundingRows + lane, block = g / groups * kRoundingRows + lane;
      F32 scale = S::load(grid.scale + block);
      if (shape.two_levels()) scale = S::mul(scale, S::load(grid.steps + here));
      F32 offset = S::zero_f32();
      if (shape.offset == OffsetKind::kValue) offset = S::load(grid.offset + block);
      if (shape.offset == OffsetKind::kSteps)
        offset = S::neg(S::mul(S::load(grid.offset + block), S::load(grid.offset_steps + here)));
      S::store(to.scale + here, scale);
      S::store(to.offset + here, offset);
      S::store(to.zero + here, shape.offset == OffsetKind::kZero ? S::load(grid.offset_steps + here)
                                                                 : S::zero_f32());
    }
  }

  // The unit, as it is stored, whose steps come nearest to `wanted`, each square counting `weight`.
  static F32 best_unit(const F32* wanted, const F32* weight, int64_t count, StepRange range) {
    F32 largest = S::zero_f32();
    for (int64_t i = 0; i < count; ++i) largest = Math::longer(largest, wanted[i]);
    F32 best = S::zero_f32(), least = S::set1(std::numeric_limits<float>::infinity());
    for (int k = 0; k < kUnits; ++k) {
      const F32 start = S::div(largest, S::set1(Math::outermost(range, k)));
      F32 products = S::zero_f32(), squares = S::zero_f32();
      for (int64_t i = 0; i < count; ++i) {
        const F32 step = Math::step_of(wanted[i], start, range);
        const F32 weighted = S::mul(weight[i], step);
        products = S::fma(weighted, wanted[i], products);
        squares = S::fma(weighted, step, squares);
      }
      const F32 unit = Math::half(Math::ratio(products, squares));
      F32 error = S::zero_f32();
      for (int64_t i = 0; i < count; ++i) {
        const F32 off = S::sub(S::mul(unit, Math::step_of(wanted[i], unit, range)), wanted[i]);
        error = S::fma(S::mul(weight[i], off), off, error);
      }
      const auto better = S::less(error, least);
      best = S::select(better, unit, best);
      least = S::select(better, error, least);
    }
    return best;
  }

  // Units and steps of all blocks of a span, for the values `wanted` [groups][64] times `sign`.
  // `first` is the first of their unknowns in the system, whose diagonal weighs them.
  void fit_units(const SmallSystem<S>& system, const float* wanted, float sign, int64_t first,
                 int64_t count, StepRange range, float* units, float* steps) const {
    const int64_t groups = shape.block / shape.group;
    F32 values[kMostSteps] = {}, weights[kMostSteps] = {};
    for (int64_t block = 0; block * groups < count; ++block) {
      for (int64_t i = 0; i < groups; ++i) {
        const int64_t g = block * groups + i;
        values[i] = S::mul(S::set1(sign), S::load(wanted + g * kRoundingRows));
        weights[i] = S::load(system.cell(first + g, first + g));
      }
      const F32 unit = best_unit(values, weights, groups, range);
      S::store(units + block * kRoundingRows, unit);
      for (int64_t i = 0; i < groups; ++i)
        S::store(steps + (block * groups + i) * kRoundingRows,
                 Math::step_of(values[i], unit, range));
    }
  }

  // Takes for each step in turn the one of least loss beside the others as they are. `left`
  // [unknowns][64] is the system's right side less what the change so far takes of it.
  void polish(const SmallSystem<S>& system, float* left, float sign, int64_t first, int64_t count,
              StepRange range, const float* units, float* steps) const {
    const int64_t groups = shape.block / shape.group;
    for (int64_t g = 0; g < count; ++g) {
      const F32 unit = S::mul(S::set1(sign), S::load(units + g / groups * kRoundingRows));
      const F32 step = S::load(steps + g * kRoundingRows);
      const int64_t here = first + g;
      const F32 better =
          Math::ratio(S::load(left + here * kRoundingRows), S::load(system.cell(here, here)));
      const F32 next = Math::step_of(S::fma(unit, step, better), unit, range);
      const F32 change = S::mul(unit, S::sub(next, step));
      S::store(steps + g * kRoundingRows, next);
      for (int64_t k = 0; k < system.unknowns; ++k) {
        float* to = left + k * kRoundingRows;
        S::store(to, S::fma(S::neg(system.element(here, k)), change, S::load(to)));
      }
    }
  }
};

}  // namespace fewbit
