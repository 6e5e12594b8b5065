// X^T X with AMX's bf16 tiles. Inputs are rounded to bf16; a product of two is exact in float32,
// and the tiles add products of two rows at a time to float32 sums over a block's rows.
#include <immintrin.h>

#include <utility>

#include "gram/gram.h"
#include "gram/moment_kernels.h"
#include "simd/avx512.h"
#include "simd/tiles.h"

namespace fewbit {

namespace {

constexpr int kTilesWide = 4;  // of a panel
// A panel: its first 32 columns as left factors, its last 32 so, and both as right factors. Each
// half lies together, steps of 32 rows in order, since two of them must share a first-level cache.
constexpr size_t kHalfBytes = kGramRows / kTileDepth * kStepBytes;
constexpr size_t kPanelBytes = 4 * kHalfBytes;

void prefetch_rows(const float* x, int64_t stride) {
  Avx512::prefetch(x);
  Avx512::prefetch(x + stride);
}

// 16 columns of two rows as bf16, the two of a column side by side.
__m512i pair_of_rows(const float* x, int64_t stride, int64_t rows, __mmask16 columns) {
  const __m512 first = rows > 0 ? _mm512_maskz_loadu_ps(columns, x) : _mm512_setzero_ps();
  const __m512 second = rows > 1 ? _mm512_maskz_loadu_ps(columns, x + stride) : _mm512_setzero_ps();
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

void pack_bfloats(const float* x, int64_t stride, int64_t rows, int64_t columns, uint8_t* panel) {
  for (int64_t row = 0; row < rows; row += kTileDepth, panel += kStepBytes) {
    for (int tile = 0; tile < kTilesWide; ++tile) {
      const int64_t left = columns - tile * kTile;
      const int wide = static_cast<int>(left < 0 ? 0 : left < kTile ? left : kTile);
      const float* from = x + row * stride + tile * kTile;
      __m512i pairs[kTile];
#pragma GCC unroll 16
      for (int p = 0; p < kTile; ++p) {
        // Rows lie on pages of their own, where the processor sees no stream.
        prefetch_rows(from + (kTileDepth + 2 * p) * stride, stride);
        pairs[p] =
            pair_of_rows(from + 2 * p * stride, stride, rows - row - 2 * p, Avx512::first(wide));
      }
      uint8_t* left_tile = panel + tile / 2 * kHalfBytes + tile % 2 * kTileBytes;
      uint8_t* right_tile = left_tile + 2 * kHalfBytes;
#pragma GCC unroll 16
      for (int p = 0; p < kTile; ++p) _mm512_store_si512(right_tile + 64 * p, pairs[p]);
      transpose_words(pairs, left_tile);
    }
  }
}

using Sums = float[kTile][kTile];

void add_sums(const Sums& sums, int64_t rows, int64_t columns, float* c, int64_t stride) {
  if (columns <= 0) return;
  const __mmask16 mask = Avx512::first(static_cast<int>(columns < kTile ? columns : kTile));
  for (int64_t r = 0; r < rows && r < kTile; ++r, c += stride) {
    const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), _mm512_load_ps(sums[r]));
    _mm512_mask_storeu_ps(c, mask, sum);
  }
}

// The sums of 32 x 32 outputs over a block's rows.
void multiply_quarter(const uint8_t* a, const uint8_t* b, int64_t rows, Sums (&sums)[2][2]) {
  zero_sums();
  add_products(a, b, (rows + kTileDepth - 1) / kTileDepth);
  _tile_stored(0, sums[0][0], 64);
  _tile_stored(1, sums[0][1], 64);
  _tile_stored(2, sums[1][0], 64);
  _tile_stored(3, sums[1][1], 64);
}

void multiply_bfloats(const uint8_t* a, const uint8_t* b, int64_t rows, int64_t a_columns,
                      int64_t b_columns, float* c, int64_t stride) {
  configure_whole_tiles();
  alignas(64) Sums sums[2][2];
  // From quarter to quarter one half of the factors stays.
  for (const auto& [i, j] : {std::pair{0, 0}, {0, 1}, {1, 1}, {1, 0}}) {
    const int64_t top = 2 * kTile * i, left = 2 * kTile * j;
    if (top >= a_columns || left >= b_columns) continue;
    multiply_quarter(a + i * kHalfBytes, b + (2 + j) * kHalfBytes, rows, sums);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t s = 0; s < 2; ++s) {
        const int64_t row = top + r * kTile, column = left + s * kTile;
        add_sums(sums[r][s], a_columns - row, b_columns - column, c + row * stride + column,
                 stride);
      }
    }
  }
  _tile_release();
}

}  // namespace

extern const GramKernels kAmxGram = {"bf16/amx", kPanelBytes, pack_bfloats, multiply_bfloats,
                                     sum_moments<Avx512>};

}  // namespace fewbit
