// The search of rounding.h for scales, over S.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/simd.h"
#include "solvers/rounding.h"

namespace fewbit {

template <class S>
struct ScaleSearch {
  using F32 = typename S::F32;
  static constexpr int kSymmetricStarts = 14;
  static constexpr int kOffsetStarts = 9;
  static constexpr int kPolish = 4;
  // Groups of more columns have far outliers: the range is cut down to 1 / 3.5 of what it needs at
  // 4 bits, less where there are more levels, by more starts (docs/log.md, formats.grid.search).
  static constexpr int64_t kShort = 64;
  static constexpr int kLongStarts = 32;

  // What the regression of 16 rows' values on their levels needs.
  struct Sums {
    F32 wl, wll, wxl;
  };
  struct Found {
    F32 scale, offset, gain;
  };

  const ScaleTask& task;
  const float* values;  // the first of 16 rows
  F32 total, moment;    // the sums of w and of w x

  FEWBIT_INLINE F32 ratio(F32 a, F32 b) {
    const auto none = S::equal(b, S::zero_f32());
    return S::select(none, S::zero_f32(), S::div(a, S::select(none, S::set1(1.0f), b)));
  }

  F32 value(int64_t i) const { return S::load(values + i * kRoundingRows); }

  // The sums at the levels nearest to (x - offset) / scale.
  Sums sums_at(F32 scale, F32 offset) const {
    const F32 inverse = ratio(S::set1(1.0f), scale);
    const F32 shift = S::neg(S::mul(offset, inverse));
    const F32 low = S::set1(task.low), high = S::set1(task.high);
    Sums sums{S::zero_f32(), S::zero_f32(), S::zero_f32()};
    for (int64_t i = 0; i < task.columns; ++i) {
      const F32 x = value(i);
      const F32 held = S::min(S::max(S::fma(x, inverse, shift), low), high);
      const F32 level = S::convert(S::round(held));
      const F32 weighted = S::mul(S::set1(task.importance[i]), level);
      sums.wl = S::add(sums.wl, weighted);
      sums.wll = S::fma(weighted, level, sums.wll);
      sums.wxl = S::fma(weighted, x, sums.wxl);
    }
    return sums;
  }

  // The scale (and offset) of least squares at fixed levels, and how far the error lies under that
  // of zeros.
  Found regression(const Sums& s) const {
    if (!task.shifts) {
      const F32 scale = ratio(s.wxl, s.wll);
      return {scale, S::zero_f32(), S::mul(scale, s.wxl)};
    }
    const F32 square = S::mul(total, s.wll);
    F32 spread = S::sub(square, S::mul(s.wl, s.wl));
    // Under a relative 2^-20 the difference is rounding: all levels are the same.
    spread = S::select(S::less(spread, S::mul(square, S::set1(0x1p-20f))), S::zero_f32(), spread);
    const F32 scale = ratio(S::sub(S::mul(total, s.wxl), S::mul(s.wl, moment)), spread);
    const F32 offset = ratio(S::sub(moment, S::mul(scale, s.wl)), total);
    return {scale, offset, S::fma(scale, s.wxl, S::mul(offset, moment))};
  }

  FEWBIT_INLINE void take_better(Found& best, const Found& tried) {
    const auto better = S::less(best.gain, tried.gain);
    best.scale = S::select(better, tried.scale, best.scale);
    best.offset = S::select(better, tried.offset, best.offset);
    best.gain = S::select(better, tried.gain, best.gain);
  }

  void try_start(Found& best, F32 scale, F32 offset) const {
    take_better(best, regression(sums_at(scale, offset)));
  }

  int starts(int of_short) const { return task.columns > kShort ? kLongStarts : of_short; }

  // Start k of `count`: by how many levels the range reaches past the last of them.
  float delta(int k, int count, float last, float most) const {
    const float cut = 2.5f * last * std::min(1.0f, std::sqrt(8.0f / last));
    const float beyond = task.columns > kShort ? cut : most;
    return -0.9f + (beyond + 0.9f) * static_cast<float>(k) / static_cast<float>(count - 1);
  }

  // The value of largest magnitude takes a place from one below the outermost level to some beyond.
  Found symmetric() const {
    F32 longest = S::zero_f32();
    for (int64_t i = 0; i < task.columns; ++i) {
      const F32 x = value(i);
      longest = S::select(S::less(S::abs(longest), S::abs(x)), x, longest);
    }
    Found best{S::mul(longest, S::set1(1.0f / task.low)), S::zero_f32(), S::zero_f32()};
    const float last = -task.low, most = std::min(3.0f, 0.45f * last);
    const int count = starts(kSymmetricStarts);
    for (int k = 0; k < count; ++k) {
      const float levels = last + delta(k, count, last, most);
      const F32 scale = S::mul(longest, S::set1(-1.0f / levels));
      try_start(best, scale, S::zero_f32());
      try_start(best, S::neg(scale), S::zero_f32());
    }
    return best;
  }

  // The range is divided among somewhat fewer and more levels than there are, held at its lower
  // end, its middle or its upper end.
  Found shifted() const {
    F32 low = value(0), high = low;
    for (int64_t i = 1; i < task.columns; ++i) {
      low = S::min(low, value(i));
      high = S::max(high, value(i));
    }
    const F32 range = S::sub(high, low);
    const float last = task.high;
    Found best{S::mul(range, S::set1(1.0f / last)), low, S::zero_f32()};
    const float most = std::min(2.4f, 0.3f * last);
    const int count = starts(kOffsetStarts);
    for (int k = 0; k < count; ++k) {
      const F32 scale = S::mul(range, S::set1(1.0f / (last + delta(k, count, last, most))));
      const F32 slack = S::sub(range, S::mul(scale, S::set1(last)));
      for (const float anchor : {0.0f, 0.5f, 1.0f})
        try_start(best, scale, S::fma(slack, S::set1(anchor), low));
    }
    return best;
  }

  static void search(const ScaleTask& task, const float* values, float* scales, float* offsets) {
    for (int64_t row = 0; row < kRoundingRows; row += kLanes) {
      ScaleSearch one{task, values + row, S::zero_f32(), S::zero_f32()};
      for (int64_t i = 0; i < task.columns; ++i) {
        const F32 w = S::set1(task.importance[i]);
        one.total = S::add(one.total, w);
        one.moment = S::fma(w, one.value(i), one.moment);
      }
      Found best = task.shifts ? one.shifted() : one.symmetric();
      for (int k = 0; k < kPolish; ++k) one.try_start(best, best.scale, best.offset);
      S::store(scales + row, best.scale);
      S::store(offsets + row, best.offset);
    }
  }
};

}  // namespace fewbit
