// The search of block_search.h over S.
#pragma once

#include <algorithm>
#include <limits>

#include "simd/simd.h"
#include "solvers/block_search.h"
#include "solvers/grid_impl.h"

namespace fewbit {

// For 16 rows. At fixed codes a group's error is a quadratic in its scale and offset, whose
// coefficients are sums over its columns; units and steps are sought on those quadratics.
template <class S>
class BlockSearch {
 public:
  static void search(const BlockTask& task, const float* values, const LaneGrid& found) {
    for (int64_t lane = 0; lane < kRoundingRows; lane += kLanes)
      BlockSearch(task, values + lane)
          .run({found.scale + lane, found.offset + lane, found.steps + lane,
                found.offset_steps + lane});
  }

 private:
  using F32 = typename S::F32;
  using Math = GridMath<S>;
  static constexpr int kStarts = 9;
  static constexpr int kUnits = 8;
  static constexpr int kRounds = 2;  // of steps and units in turn
  static constexpr int kPolish = 4;  // of codes and stored scales in turn

  // Of weights w, values x and levels l over a group.
  struct Sums {
    F32 w, wx, wl, wll, wxl;
  };
  struct Line {
    F32 scale, offset;
  };
  struct Tried {
    F32 unit, offset_unit;
    F32 steps[kMostSteps], offset_steps[kMostSteps];
  };

  BlockSearch(const BlockTask& task, const float* values)
      : task_(task), shape_(task.shape), values_(values) {}

  F32 value(int64_t column) const {
    return S::load(values_ + static_cast<int64_t>(task_.places[column]) * kRoundingRows);
  }
  F32 weight(int64_t column) const { return S::set1(task_.importance[column]); }

  F32 nearest(F32 x) const {
    const Levels& levels = shape_.levels;
    if (levels.midpoints == nullptr)
      return Math::whole(x, levels.values[0], levels.values[levels.count - 1]);
    F32 level = S::set1(levels.values[0]);
    for (int64_t i = 1; i < levels.count; ++i)
      level =
          S::select(S::less(S::set1(levels.midpoints[i - 1]), x), S::set1(levels.values[i]), level);
    return level;
  }

  // A group's sums at the levels nearest to (x - offset) / scale; those of w and w x are given.
  Sums sums_at(int64_t group, const Line& line, F32 w, F32 wx) const {
    const F32 inverse = Math::ratio(S::set1(1.0f), line.scale);
    const F32 shift = S::neg(S::mul(line.offset, inverse));
    Sums sums{w, wx, S::zero_f32(), S::zero_f32(), S::zero_f32()};
    for (int64_t i = group * shape_.group; i < (group + 1) * shape_.group; ++i) {
      const F32 x = value(i), level = nearest(S::fma(x, inverse, shift));
      const F32 weighted = S::mul(weight(i), level);
      sums.wl = S::add(sums.wl, weighted);
      sums.wll = S::fma(weighted, level, sums.wll);
      sums.wxl = S::fma(weighted, x, sums.wxl);
    }
    return sums;
  }

  F32 error_at(int64_t group, const Line& line) const {
    const F32 inverse = Math::ratio(S::set1(1.0f), line.scale);
    const F32 shift = S::neg(S::mul(line.offset, inverse));
    F32 error = S::zero_f32();
    for (int64_t i = group * shape_.group; i < (group + 1) * shape_.group; ++i) {
      const F32 x = value(i), level = nearest(S::fma(x, inverse, shift));
      const F32 off = S::sub(S::add(S::mul(level, line.scale), line.offset), x);
      error = S::fma(S::mul(weight(i), off), off, error);
    }
    return error;
  }

  // By how much the error lies under that of zeros.
  static F32 gain(const Sums& s, const Line& line) {
    const F32 two = S::set1(2.0f);
    const F32 slope = S::sub(S::mul(two, s.wxl), S::mul(line.scale, s.wll));
    const F32 mixed = S::mul(S::mul(two, line.offset), s.wl);
    const F32 shift = S::sub(S::mul(two, s.wx), S::mul(line.offset, s.w));
    return S::fma(line.scale, S::sub(slope, mixed), S::mul(line.offset, shift));
  }

  // The scale and offset of least squares at fixed codes; offsets only shift downwards, and scales
  // beside them are not negative.
  Line regression(const Sums& s) const {
    const F32 none = S::zero_f32(), alone = Math::ratio(s.wxl, s.wll);
    if (shape_.offset == OffsetKind::kNone) return {alone, none};
    const F32 square = S::mul(s.w, s.wll);
    F32 spread = S::sub(square, S::mul(s.wl, s.wl));
    // Under a relative 2^-20 the difference is rounding: all levels are the same.
    spread = S::select(S::less(spread, S::mul(square, S::set1(0x1p-20f))), none, spread);
    const F32 scale = Math::ratio(S::sub(S::mul(s.w, s.wxl), S::mul(s.wl, s.wx)), spread);
    const F32 offset = Math::ratio(S::sub(s.wx, S::mul(scale, s.wl)), s.w);
    const auto upward = S::either(S::less(none, offset), S::less(scale, none));
    return {S::select(upward, S::max(alone, none), scale), S::select(upward, none, offset)};
  }

  // How far start k lets the range reach, in units of where the last of the levels lies: from a
  // little less than a step under it to `most` steps past it.
  float reach(int k, float last, float most) const {
    const float step = shape_.levels.midpoints == nullptr ? 1.0f : last / 8;
    const float first = 1 - 0.9f * step / last, end = 1 + std::min(most * step / last, 0.45f);
    return first + (end - first) * static_cast<float>(k) / static_cast<float>(kStarts - 1);
  }

  // The sums at the codes of the start that promises the least error.
  Sums scan(int64_t group) const {
    F32 w = S::zero_f32(), wx = S::zero_f32();
    F32 longest = S::zero_f32(), low = S::zero_f32(), high = S::zero_f32();
    for (int64_t i = group * shape_.group; i < (group + 1) * shape_.group; ++i) {
      const F32 x = value(i);
      w = S::add(w, weight(i));
      wx = S::fma(weight(i), x, wx);
      longest = Math::longer(longest, x);
      low = S::min(low, x);
      high = S::max(high, x);
    }
    Sums best{w, wx, S::zero_f32(), S::zero_f32(), S::zero_f32()};
    F32 most = S::zero_f32();
    const auto attempt = [&](F32 scale, F32 offset) {
      const Sums sums = sums_at(group, {scale, offset}, w, wx);
      const F32 promised = gain(sums, regression(sums));
      const auto better = S::less(most, promised);
      most = S::select(better, promised, most);
      best.wl = S::select(better, sums.wl, best.wl);
      best.wll = S::select(better, sums.wll, best.wll);
      best.wxl = S::select(better, sums.wxl, best.wxl);
    };
    if (shape_.offset == OffsetKind::kNone) {
      symmetric_starts(longest, attempt);
    } else {
      offset_starts(low, high, attempt);
    }
    return best;
  }

  // The longest value takes places about the outermost level, in both directions.
  template <class Attempt>
  void symmetric_starts(F32 longest, const Attempt& attempt) const {
    const float outer = shape_.levels.values[0];
    for (int k = 0; k < kStarts; ++k) {
      const F32 scale = S::div(longest, S::set1(outer * reach(k, -outer, 3.0f)));
      attempt(scale, S::zero_f32());
      attempt(S::neg(scale), S::zero_f32());
    }
  }

  // The range is held at its lower end, its middle or its upper end.
  template <class Attempt>
  void offset_starts(F32 low, F32 high, const Attempt& attempt) const {
    const float last = shape_.levels.values[shape_.levels.count - 1];
    const F32 range = S::sub(high, low);
    for (int k = 0; k < kStarts; ++k) {
      const F32 scale = S::div(range, S::set1(last * reach(k, last, 2.4f)));
      const F32 slack = S::sub(range, S::mul(scale, S::set1(last)));
      for (const float anchor : {0.0f, 0.5f, 1.0f})
        attempt(scale, S::fma(slack, S::set1(anchor), low));
    }
  }

  int64_t count() const { return shape_.block / shape_.group; }

  Line line(const Tried& tried, int64_t group) const {
    if (!shape_.two_levels()) return {tried.unit, S::zero_f32()};
    return {S::mul(tried.unit, tried.steps[group]),
            S::neg(S::mul(tried.offset_unit, tried.offset_steps[group]))};
  }

  void run(const LaneGrid& found) const {
    Sums sums[kMostSteps];
    for (int64_t g = 0; g < count(); ++g) sums[g] = scan(g);
    Tried tried =
        shape_.two_levels() ? settle(sums) : Tried{single(sums[0]), S::zero_f32(), {}, {}};
    Tried best = tried;
    const F32 unit = tried.unit, offset_unit = tried.offset_unit;
    F32 least = S::set1(std::numeric_limits<float>::infinity());
    for (int round = 0; round < kPolish; ++round) {
      F32 error = S::zero_f32();
      for (int64_t g = 0; g < count(); ++g) {
        const Line line = this->line(tried, g);
        error = S::add(error, error_at(g, line));
        sums[g] = sums_at(g, line, sums[g].w, sums[g].wx);
      }
      const auto better = S::less(error, least);
      take(best, tried, better);
      least = S::select(better, error, least);
      if (shape_.two_levels()) {
        improve(sums, tried);
      } else {
        tried.unit = single(sums[0]);
      }
    }
    // A unit beyond float16 must show: rounds after it would end at zeros.
    const F32 end = S::set1(std::numeric_limits<float>::infinity());
    best.unit = S::select(S::less(S::abs(unit), end), best.unit, unit);
    best.offset_unit = S::select(S::less(S::abs(offset_unit), end), best.offset_unit, offset_unit);
    write(best, found);
  }

  F32 single(const Sums& sums) const { return Math::half(Math::ratio(sums.wxl, sums.wll)); }

  void write(const Tried& best, const LaneGrid& found) const {
    S::store(found.scale, best.unit);
    if (!shape_.two_levels()) return;
    S::store(found.offset, best.offset_unit);
    for (int64_t g = 0; g < count(); ++g) {
      S::store(found.steps + g * kRoundingRows, best.steps[g]);
      S::store(found.offset_steps + g * kRoundingRows, best.offset_steps[g]);
    }
  }

  template <class Mask>
  void take(Tried& best, const Tried& tried, const Mask& better) const {
    best.unit = S::select(better, tried.unit, best.unit);
    best.offset_unit = S::select(better, tried.offset_unit, best.offset_unit);
    if (!shape_.two_levels()) return;
    for (int64_t g = 0; g < count(); ++g) {
      best.steps[g] = S::select(better, tried.steps[g], best.steps[g]);
      best.offset_steps[g] = S::select(better, tried.offset_steps[g], best.offset_steps[g]);
    }
  }

  F32 promise(const Sums* sums, const Tried& tried) const {
    F32 promised = S::zero_f32();
    for (int64_t g = 0; g < count(); ++g)
      promised = S::add(promised, gain(sums[g], line(tried, g)));
    return promised;
  }

  // The units and steps of least error at fixed codes, of those tried.
  Tried settle(const Sums* sums) const {
    F32 scales[kMostSteps];
    F32 largest = S::zero_f32();
    for (int64_t g = 0; g < count(); ++g) {
      scales[g] = regression(sums[g]).scale;
      largest = Math::longer(largest, scales[g]);
    }
    // The first is taken whatever it gives, also a unit beyond float16.
    Tried best = from_unit(
        sums, Math::half(S::div(largest, S::set1(Math::outermost(shape_.steps, 0)))), scales);
    F32 most = promise(sums, best);
    for (int k = 0; k < kUnits; ++k) {
      const float outer = Math::outermost(shape_.steps, k);
      Tried tried = from_unit(sums, Math::half(S::div(largest, S::set1(outer))), scales);
      for (int round = 0; round < kRounds; ++round) {
        if (round > 0) improve(sums, tried);
        const F32 promised = promise(sums, tried);
        const auto better = S::less(most, promised);
        take(best, tried, better);
        most = S::select(better, promised, most);
      }
    }
    return best;
  }

  // Steps nearest to the scales, and the offsets that are best beside them.
  Tried from_unit(const Sums* sums, F32 unit, const F32* scales) const {
    Tried tried{};
    tried.unit = unit;
    tried.offset_unit = S::zero_f32();
    F32 minima[kMostSteps], deepest = S::zero_f32();
    for (int64_t g = 0; g < count(); ++g) {
      tried.steps[g] = Math::step_of(scales[g], unit, shape_.steps);
      tried.offset_steps[g] = S::zero_f32();
      minima[g] = S::max(minimum(sums[g], unit, tried.steps[g]), S::zero_f32());
      deepest = S::max(minima[g], deepest);
    }
    if (shape_.offset == OffsetKind::kNone) return tried;
    tried.offset_unit = Math::half(S::div(deepest, S::set1(shape_.offset_steps.high)));
    for (int64_t g = 0; g < count(); ++g)
      tried.offset_steps[g] = Math::step_of(minima[g], tried.offset_unit, shape_.offset_steps);
    return tried;
  }

  // What is best subtracted beside a scale.
  static F32 minimum(const Sums& s, F32 unit, F32 step) {
    return Math::ratio(S::sub(S::mul(S::mul(unit, step), s.wl), s.wx), s.w);
  }

  // The best steps for the units, then the best units for those steps.
  void improve(const Sums* sums, Tried& tried) const {
    for (int64_t g = 0; g < count(); ++g) {
      const F32 offset = line(tried, g).offset;
      const F32 wanted = Math::ratio(S::sub(sums[g].wxl, S::mul(offset, sums[g].wl)), sums[g].wll);
      tried.steps[g] = Math::step_of(wanted, tried.unit, shape_.steps);
      if (shape_.offset == OffsetKind::kNone) continue;
      tried.offset_steps[g] = Math::step_of(minimum(sums[g], tried.unit, tried.steps[g]),
                                            tried.offset_unit, shape_.offset_steps);
    }
    improve_units(sums, tried);
  }

  // Solves the normal equations of both units; beside offsets they can only be positive.
  void improve_units(const Sums* sums, Tried& tried) const {
    const F32 none = S::zero_f32();
    F32 a = none, b = none, c = none, p = none, q = none;
    for (int64_t g = 0; g < count(); ++g) {
      const F32 step = tried.steps[g], down = tried.offset_steps[g];
      a = S::fma(S::mul(step, step), sums[g].wll, a);
      p = S::fma(step, sums[g].wxl, p);
      b = S::sub(b, S::mul(S::mul(step, down), sums[g].wl));
      c = S::fma(S::mul(down, down), sums[g].w, c);
      q = S::sub(q, S::mul(down, sums[g].wx));
    }
    const F32 alone = Math::ratio(p, a);
    if (shape_.offset == OffsetKind::kNone) {
      tried.unit = Math::half(alone);
      return;
    }
    const F32 square = S::mul(a, c), determinant = S::sub(square, S::mul(b, b));
    const auto sound = S::less(S::mul(square, S::set1(0x1p-20f)), determinant);
    const F32 divisor = S::select(sound, determinant, S::set1(1.0f));
    const F32 unit = S::div(S::sub(S::mul(c, p), S::mul(b, q)), divisor);
    const F32 offset_unit = S::div(S::sub(S::mul(a, q), S::mul(b, p)), divisor);
    tried.unit = Math::half(S::max(S::select(sound, unit, alone), none));
    tried.offset_unit = Math::half(S::max(S::select(sound, offset_unit, none), none));
  }

  const BlockTask& task_;
  const GridShape& shape_;
  const float* values_;
};

}  // namespace fewbit
