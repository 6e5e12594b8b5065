// What kernels on AMX tiles of bf16 pairs share; for files ending in _amx only.
//
// A tile has 16 rows of 64 bytes. As a left factor row i holds the bf16 numbers (i, k) of 32
// successive k; as a right factor row p holds the pairs (2 p, j), (2 p + 1, j) of 16 columns j; as
// sums it holds 16 float32.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "simd/simd.h"

namespace fewbit {

inline constexpr int kTile = 16;       // rows, and columns of sums
inline constexpr int kTileDepth = 32;  // of a product of two tiles
inline constexpr size_t kTileBytes = 1024;
inline constexpr size_t kStepBytes = 2 * kTileBytes;  // 32 rows (or columns) of a step of depth

struct alignas(64) WholeTiles {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

FEWBIT_INLINE void configure_whole_tiles() {
  WholeTiles config;
  // The intrinsic claims to read 8 bytes only, and the compiler would drop the others.
  __asm__ volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

FEWBIT_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Adds to the sums of 32 x 32 outputs, tiles 0 to 3 row by row, products over some steps of depth;
// a step of a factor is two tiles.
FEWBIT_INLINE void add_products(const uint8_t* a, const uint8_t* b, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step, a += kStepBytes, b += kStepBytes) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileBytes, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Transposes 16 vectors of 16 words: quarters of words, then quarters of 128-bit lanes.
FEWBIT_INLINE void transpose_words(const __m512i (&in)[kTile], uint8_t* out) {
  __m512i quads[kTile];
#pragma GCC unroll 4
  for (int i = 0; i < kTile; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    const __m512i b = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(in[i + 2], in[i + 3]);
    const __m512i d = _mm512_unpackhi_epi32(in[i + 2], in[i + 3]);
    quads[i] = _mm512_unpacklo_epi64(a, c);
    quads[i + 1] = _mm512_unpackhi_epi64(a, c);
    quads[i + 2] = _mm512_unpacklo_epi64(b, d);
    quads[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // quads[4 g + w], lane l: word 4 l + w of the vectors 4 g .. 4 g + 3.
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const __m512i a = _mm512_shuffle_i32x4(quads[w], quads[4 + w], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(quads[w], quads[4 + w], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(quads[8 + w], quads[12 + w], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(quads[8 + w], quads[12 + w], 0xee);
    _mm512_store_si512(out + 64 * w, _mm512_shuffle_i32x4(a, c, 0x88));
    _mm512_store_si512(out + 64 * (4 + w), _mm512_shuffle_i32x4(a, c, 0xdd));
    _mm512_store_si512(out + 64 * (8 + w), _mm512_shuffle_i32x4(b, d, 0x88));
    _mm512_store_si512(out + 64 * (12 + w), _mm512_shuffle_i32x4(b, d, 0xdd));
  }
}

}  // namespace fewbit
