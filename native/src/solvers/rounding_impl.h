// The loops of rounding.h over S.
#pragma once

#include <algorithm>

#include "simd/simd.h"
#include "solvers/rounding.h"

namespace fewbit {

template <class S>
struct Rounding {
  using F32 = typename S::F32;
  static constexpr int kVectors = static_cast<int>(kRoundingRows / kLanes);
  // As many sums at once as registers hold beside a broadcast and the errors. AVX2 and NEON need
  // two and four registers for 16 lanes.
  static constexpr int kColumnsAtOnce = S::kRegisters == 32 && sizeof(F32) == 64 ? 6 : 3;
  static constexpr int kVectorsAtOnce = kColumnsAtOnce == 6 ? kVectors : 2;
  // The errors of so many columns stay in the second cache while all targets take them.
  static constexpr int64_t kDepth = 512;

  template <int Columns, int Vectors>
  FEWBIT_INLINE void multiply(const float* factor, int64_t stride, const float* errors,
                              float* targets, int64_t depth) {
    F32 sums[Columns][Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        sums[j][v] = S::load(targets + j * kRoundingRows + v * kLanes);
    for (int64_t k = 0; k < depth; ++k) {
      F32 e[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) e[v] = S::load(errors + k * kRoundingRows + v * kLanes);
#pragma GCC unroll 8
      for (int j = 0; j < Columns; ++j) {
        const F32 f = S::set1(factor[j * stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sums[j][v] = S::fma(f, e[v], sums[j][v]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        S::store(targets + j * kRoundingRows + v * kLanes, sums[j][v]);
  }

  template <int Columns>
  FEWBIT_INLINE void multiply_rows(const float* factor, int64_t stride, const float* errors,
                                   float* targets, int64_t depth) {
    for (int v = 0; v < kVectors; v += kVectorsAtOnce)
      multiply<Columns, kVectorsAtOnce>(factor, stride, errors + v * kLanes, targets + v * kLanes,
                                        depth);
  }

  static void advance(const float* factor, int64_t columns, const float* errors, float* targets,
                      int64_t first, int64_t last, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; k += kDepth) {
      const int64_t depth = std::min(kDepth, to - k);
      int64_t j = first;
      for (; j + kColumnsAtOnce <= last; j += kColumnsAtOnce)
        multiply_rows<kColumnsAtOnce>(factor + j * columns + k, columns, errors + k * kRoundingRows,
                                      targets + (j - first) * kRoundingRows, depth);
      for (; j < last; ++j)
        multiply_rows<1>(factor + j * columns + k, columns, errors + k * kRoundingRows,
                         targets + (j - first) * kRoundingRows, depth);
    }
  }

  // The position of the level nearest to x; halfway, the even code of a row of integers, and the
  // lower of two levels otherwise.
  FEWBIT_INLINE typename S::I32 nearest_integer(F32 x, const Levels& levels) {
    const float low = levels.values[0];
    const F32 held = S::min(S::max(x, S::set1(low)), S::set1(levels.values[levels.count - 1]));
    return S::sub(S::round(held), S::set1(static_cast<int32_t>(low)));
  }

  // Writes codes and values of 16 rows.
  FEWBIT_INLINE F32 take_level(F32 x, const Levels& levels, int32_t* codes) {
    if (levels.midpoints == nullptr) {
      const auto code = nearest_integer(x, levels);
      S::store(codes, code);
      return S::convert(S::add(code, S::set1(static_cast<int32_t>(levels.values[0]))));
    }
    auto code = S::zero_i32();
    F32 level = S::set1(levels.values[0]);
    for (int64_t i = 1; i < levels.count; ++i) {
      const auto above = S::less(S::set1(levels.midpoints[i - 1]), x);
      code = S::select(above, S::set1(static_cast<int32_t>(i)), code);
      level = S::select(above, S::set1(levels.values[i]), level);
    }
    S::store(codes, code);
    return level;
  }

  // Rounds one column towards its targets; leaves the change of its errors in `changes`.
  static void round_column(const RoundingTile& tile, const float* targets, int64_t column,
                           int64_t group, const Levels& levels, float* changes) {
    float* errors = tile.errors + column * kRoundingRows;
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = v * kLanes;
      const F32 scale = S::load(tile.scales + group * kRoundingRows + at);
      const F32 offset =
          tile.offsets ? S::load(tile.offsets + group * kRoundingRows + at) : S::zero_f32();
      const auto none = S::equal(scale, S::zero_f32());
      const F32 step = S::select(none, S::set1(1.0f), scale);
      const F32 x = S::div(S::sub(S::load(targets + at), offset), step);
      int32_t codes[kLanes];
      const F32 level = take_level(S::select(none, S::zero_f32(), x), levels, codes);
      for (int i = 0; i < kLanes; ++i)
        tile.codes[column * kRoundingRows + at + i] = static_cast<uint8_t>(codes[i]);
      const F32 value = S::add(S::mul(scale, level), offset);
      const F32 error = S::sub(S::load(tile.weights + column * kRoundingRows + at), value);
      S::store(changes + at, S::sub(error, S::load(errors + at)));
      S::store(errors + at, error);
    }
  }

  static void round(const RoundingTile& tile, const float* factor, int64_t columns, int64_t origin,
                    int64_t end, int64_t first, int64_t last, const int32_t* groups,
                    const Levels& levels) {
    constexpr int64_t kMost = 32;
    float changes[kMost * kRoundingRows];
    // Runs of few columns, so that the changes stay in the first cache.
    for (int64_t start = first; start < last; start += kMost) {
      const int64_t stop = std::min(start + kMost, last);
      for (int64_t j = start; j < stop; ++j) {
        float* targets = tile.targets + (j - origin) * kRoundingRows;
        multiply_rows<1>(factor + j * columns + start, columns, changes, targets, j - start);
        round_column(tile, targets, j, groups[j - first], levels,
                     changes + (j - start) * kRoundingRows);
      }
      advance(factor + start, columns, changes, tile.targets + (stop - origin) * kRoundingRows,
              stop, end, 0, stop - start);
    }
  }
};

}  // namespace fewbit
