// A block of a product on AMX's bf16 tiles.
#include <immintrin.h>

#include <algorithm>

#include "executor/memory.h"
#include "simd/avx512.h"
#include "simd/tiles.h"
#include "training/product.h"

namespace fewbit {

namespace {

// Rows (or columns) that are packed together: two tiles.
constexpr int64_t kPanel = 2 * kTile;
// A panel of so much depth takes 40 KiB: one of the right factor stays in the first-level cache
// while those of the left one pass.
constexpr int64_t kMostDepth = 640;
// How many steps of depth ahead rows are asked for.
constexpr int64_t kStepsAhead = 4;

using Sums = float[kPanel][kPanel];

__mmask32 first_halves(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << std::max<int64_t>(n, 0)) - 1;
}

// 32 successive depths of 16 rows; `rows` and `depths` are those there are.
void load_rows(const Factor& f, const uint16_t* from, int64_t rows, int64_t depths,
               __m512i (&out)[kTile]) {
  const __mmask32 mask = first_halves(depths);
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i) {
    const uint16_t* row = from + i * f.step;
    Avx512::prefetch(row + kStepsAhead * kTileDepth);
    out[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, row) : _mm512_setzero_si512();
  }
}

__m512i widened(const uint16_t* from, bool there, __mmask16 mask) {
  return _mm512_cvtepu16_epi32(there ? _mm256_maskz_loadu_epi16(mask, from)
                                     : _mm256_setzero_si256());
}

// 16 pairs of depths, each of 16 rows.
void load_pairs(const Factor& f, const uint16_t* from, int64_t rows, int64_t depths,
                __m512i (&out)[kTile]) {
  const auto mask = static_cast<__mmask16>(first_halves(std::min<int64_t>(rows, kTile)));
#pragma GCC unroll 16
  for (int p = 0; p < kTile; ++p) {
    const uint16_t* pair = from + 2 * p * f.depth_step;
    // Depths lie on pages of their own, where the processor sees no stream.
    Avx512::prefetch_stream(pair + kTileDepth * f.depth_step);
    Avx512::prefetch_stream(pair + (kTileDepth + 1) * f.depth_step);
    const __m512i low = widened(pair, 2 * p < depths, mask);
    const __m512i high = widened(pair + f.depth_step, 2 * p + 1 < depths, mask);
    out[p] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
}

void store_words(const __m512i (&words)[kTile], uint8_t* out) {
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i) _mm512_store_si512(out + 64 * i, words[i]);
}

// Packs rows [first, first + count) of some depths: panels, of steps of 32 depths, of two tiles.
template <bool kRight>
void pack(const Factor& f, int64_t first, int64_t count, int64_t depth, int64_t depths,
          uint8_t* out) {
  const bool by_rows = f.depth_step == 1;
  for (int64_t row = 0; row < count; row += kPanel) {
    for (int64_t k = 0; k < depths; k += kTileDepth) {
      for (int64_t half = row; half < row + kPanel; half += kTile, out += kTileBytes) {
        const uint16_t* from = f.values + (first + half) * f.step + (depth + k) * f.depth_step;
        __m512i words[kTile];
        if (by_rows) {
          load_rows(f, from, count - half, depths - k, words);
        } else {
          load_pairs(f, from, count - half, depths - k, words);
        }
        if (by_rows == kRight) {
          transpose_words(words, out);
        } else {
          store_words(words, out);
        }
      }
    }
  }
}

// The sums of 32 x 32 outputs over some steps of depth, from those so far if `more`.
void multiply_panels(const uint8_t* a, const uint8_t* b, int64_t steps, bool more, Sums& sums) {
  constexpr int64_t kStride = sizeof(sums[0]);
  if (more) {
    _tile_loadd(0, &sums[0][0], kStride);
    _tile_loadd(1, &sums[0][kTile], kStride);
    _tile_loadd(2, &sums[kTile][0], kStride);
    _tile_loadd(3, &sums[kTile][kTile], kStride);
  } else {
    zero_sums();
  }
  add_products(a, b, steps);
  _tile_stored(0, &sums[0][0], kStride);
  _tile_stored(1, &sums[0][kTile], kStride);
  _tile_stored(2, &sums[kTile][0], kStride);
  _tile_stored(3, &sums[kTile][kTile], kStride);
}

__m512 held(const uint16_t* p, __mmask16 mask) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

// Rounds finished sums to bf16, at `row` and `column`; `rows` and `columns` are those there are.
void finish(const Product& product, int64_t row, int64_t column, int64_t rows, int64_t columns,
            const Sums& sums) {
  const __mmask32 mask = first_halves(columns);
  const auto left = static_cast<__mmask16>(mask), right = static_cast<__mmask16>(mask >> kTile);
  uint16_t* out = product.out + row * product.stride + column;
  for (int64_t i = 0; i < std::min(rows, kPanel); ++i, out += product.stride) {
    __m512 low = _mm512_load_ps(sums[i]);
    __m512 high = _mm512_load_ps(sums[i] + kTile);
    if (product.add) {
      low = _mm512_add_ps(low, held(out, left));
      high = _mm512_add_ps(high, held(out + kTile, right));
    }
    const auto halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_mask_storeu_epi16(out, mask, halves);
  }
}

}  // namespace

void multiply_block_amx(const Product& product, const ProductBlock& block) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(product.depth, kMostDepth));
  const int64_t deep = ceil_div(ceil_div(product.depth, parts), kTileDepth) * kTileDepth;
  const int64_t high = ceil_div(block.rows, kPanel), wide = ceil_div(block.columns, kPanel);
  const auto panel = static_cast<size_t>(deep / kTileDepth) * kStepBytes;
  uint8_t* left = scratch<Product>((high + wide) * panel + high * wide * sizeof(Sums));
  uint8_t* right = left + high * panel;
  auto* sums = reinterpret_cast<Sums*>(right + wide * panel);
  configure_whole_tiles();
  for (int64_t depth = 0; depth < product.depth; depth += deep) {
    const int64_t depths = std::min(deep, product.depth - depth);
    const int64_t steps = ceil_div(depths, kTileDepth);
    pack<false>(product.left, block.first_row, block.rows, depth, depths, left);
    pack<true>(product.right, block.first_column, block.columns, depth, depths, right);
    for (int64_t j = 0; j < wide; ++j) {
      for (int64_t i = 0; i < high; ++i) {
        Sums& square = sums[parts > 1 ? j * high + i : 0];
        multiply_panels(left + i * steps * kStepBytes, right + j * steps * kStepBytes, steps,
                        depth > 0, square);
        if (depth + deep < product.depth) continue;
        finish(product, block.first_row + i * kPanel, block.first_column + j * kPanel,
               block.rows - i * kPanel, block.columns - j * kPanel, square);
      }
    }
  }
  _tile_release();
}

}  // namespace fewbit
