// Float weights: acc = fma(w, x, acc) over ascending inputs, and at the end times the row's scale
// where there is one. A chain waits for its own fma, so several tiles and rows run side by side.
#pragma once

#include "linear/kernels.h"

namespace fewbit {

// 16 codes of e4m3 as floats, exactly: sign, exponent and mantissa moved to their places in a
// float32, and 120 added to the exponent. Codes with the exponent 0 stand for f 2^-6 instead, which
// is (1 + f) 2^-6 - 2^-6; they are rare, so a vector without one is spared that. (A product with
// 2^120 would serve both, but each float32 subnormal in it costs some CPUs 150 cycles.)
template <class S>
FEWBIT_INLINE typename S::F32 load_e4m3(const uint8_t* p) {
  using I32 = typename S::I32;
  const I32 code = S::load_u8_i32(p);
  const I32 top = S::template shift_left<24>(code);
  const I32 moved =
      S::bit_and(S::template shift_right<4>(top), S::set1(static_cast<int32_t>(0x87f00000)));
  const typename S::F32 normal = S::from_bits(S::add(moved, S::set1(120 << 23)));
  const auto small = S::equal_i32(S::bit_and(code, S::set1(0x78)), S::zero_i32());
  if (!S::any(small)) return normal;
  const I32 sign = S::bit_and(top, S::set1(INT32_MIN));
  const I32 raised = S::add(S::bit_and(moved, S::set1(INT32_MAX)), S::set1(121 << 23));
  const typename S::F32 steps = S::sub(S::from_bits(raised), S::set1(0x1p-6f));
  return S::select(small, S::from_bits(S::bit_or(S::bits(steps), sign)), normal);
}

template <class S, Codes C>
FEWBIT_INLINE typename S::F32 load_weights(const uint8_t* p) {
  if constexpr (C == Codes::kF32) return S::load(reinterpret_cast<const float*>(p));
  if constexpr (C == Codes::kF16) return S::load_f16(p);
  if constexpr (C == Codes::kBf16) return S::load_bf16(p);
  if constexpr (C == Codes::kF8E4m3) return load_e4m3<S>(p);
}

template <class S, Codes C, int T, int R>
void float_block(const PackedMatrix& w, int64_t tile, const Activations& a, int64_t row,
                 const float* bias, float* out, int64_t out_stride) {
  constexpr size_t kStep = code_bytes(C);
  const uint8_t* tiles = w.data + static_cast<size_t>(tile) * w.tile_bytes;
  const uint8_t* weights = tiles + float_head_bytes(C);
  const float* x = a.values + row * a.columns;
  typename S::F32 acc[T][R];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[t][r] = S::zero_f32();
  }
  for (int64_t c = 0; c < w.columns; ++c) {
    typename S::F32 inputs[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) inputs[r] = S::set1(x[r * a.columns + c]);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = weights + static_cast<size_t>(t) * w.tile_bytes;
      prefetch_weights<S>(p);
      const typename S::F32 column = load_weights<S, C>(p);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[t][r] = S::fma(column, inputs[r], acc[t][r]);
    }
    weights += kStep;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const auto to = TileOut<S>::at(w, tile + t, bias, out, out_stride);
    if constexpr (float_head_bytes(C) > 0) {
      const uint8_t* head = tiles + static_cast<size_t>(t) * w.tile_bytes;
      const typename S::F32 scale = S::load(reinterpret_cast<const float*>(head));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[t][r] = S::mul(acc[t][r], scale);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) TileOut<S>::finish(to, row + r, acc[t][r]);
  }
}

// Tiles and rows whose accumulators lie in registers together. More than kFewFloatRows rows take
// fewer tiles, so that weights are converted once for as many rows as can be.
template <class S>
inline constexpr int kFloatTiles = S::kRegisters >= 32   ? 4
                                   : S::kRegisters >= 16 ? 2
                                                         : 1;
template <class S>
inline constexpr int kFewFloatRows = S::kRegisters >= 32   ? 4
                                     : S::kRegisters >= 16 ? 2
                                                           : 1;
template <class S>
inline constexpr int kManyFloatRows = S::kRegisters >= 32   ? 8
                                      : S::kRegisters >= 16 ? 4
                                                            : 1;

template <class S, Codes C, int T, int R>
FEWBIT_INLINE void float_rows(const PackedMatrix& w, int64_t tile, const Activations& a,
                              int64_t row, int64_t rows, const float* bias, float* out,
                              int64_t out_stride) {
  if constexpr (R > 1) {
    if (rows < R) {
      return float_rows<S, C, T, R - 1>(w, tile, a, row, rows, bias, out, out_stride);
    }
  }
  float_block<S, C, T, R>(w, tile, a, row, bias, out, out_stride);
}

// Whole steps of kMany rows, then the rest in steps of kFew.
template <class S, Codes C>
void float_tiles(const PackedMatrix& w, int64_t tile, const Activations& a, int64_t row_begin,
                 int64_t row_end, const float* bias, float* out, int64_t out_stride) {
  constexpr int kTiles = kFloatTiles<S>;
  constexpr int kFew = kFewFloatRows<S>;
  constexpr int kMany = kManyFloatRows<S>;
  constexpr int kShare = kTiles > 1 ? kTiles / 2 : 1;
  int64_t row = row_begin;
  for (; row_end - row > kFew; row += kMany) {
    const int64_t rows = row_end - row < kMany ? row_end - row : kMany;
    for (int t = 0; t < kTiles; t += kShare) {
      float_rows<S, C, kShare, kMany>(w, tile + t, a, row, rows, bias, out, out_stride);
    }
  }
  if (row < row_end) {
    float_rows<S, C, kTiles, kFew>(w, tile, a, row, row_end - row, bias, out, out_stride);
  }
}

template <class S, Codes C>
void multiply_float(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                    const Activations& a, int64_t row_begin, int64_t row_end, const float* bias,
                    float* out, int64_t out_stride) {
  constexpr int kTiles = kFloatTiles<S>;
  constexpr int kFew = kFewFloatRows<S>;
  int64_t tile = tile_begin;
  for (; tile + kTiles <= tile_end; tile += kTiles) {
    float_tiles<S, C>(w, tile, a, row_begin, row_end, bias, out, out_stride);
  }
  for (; tile < tile_end; ++tile) {
    for (int64_t row = row_begin; row < row_end; row += kFew) {
      const int64_t rows = row_end - row < kFew ? row_end - row : kFew;
      float_rows<S, C, 1, kFew>(w, tile, a, row, rows, bias, out, out_stride);
    }
  }
}

}  // namespace fewbit
