// Float weights: acc = fma(w, x, acc) over ascending inputs. A chain waits for its own fma, so
// several tiles and rows run side by side.
#pragma once

#include "linear/kernels.h"

namespace fewbit {

template <class S, Codes C>
FEWBIT_INLINE typename S::F32 load_weights(const uint8_t* p) {
  if constexpr (C == Codes::kF32) return S::load(reinterpret_cast<const float*>(p));
  if constexpr (C == Codes::kF16) return S::load_f16(p);
  if constexpr (C == Codes::kBf16) return S::load_bf16(p);
}

template <class S, Codes C, int T, int R>
void float_block(const PackedMatrix& w, int64_t tile, const Activations& a, int64_t row,
                 const float* bias, float* out, int64_t out_stride) {
  constexpr size_t kStep = code_bytes(C);
  const uint8_t* weights = w.data + static_cast<size_t>(tile) * w.tile_bytes;
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
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) TileOut<S>::finish(to, row + r, acc[t][r]);
  }
}

template <class S>
inline constexpr int kFloatTiles = S::kRegisters >= 32   ? 4
                                   : S::kRegisters >= 16 ? 2
                                                         : 1;
template <class S>
inline constexpr int kFloatRows = S::kRegisters >= 32   ? 4
                                  : S::kRegisters >= 16 ? 2
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

template <class S, Codes C>
void multiply_float(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                    const Activations& a, int64_t row_begin, int64_t row_end, const float* bias,
                    float* out, int64_t out_stride) {
  constexpr int kTiles = kFloatTiles<S>;
  constexpr int kRows = kFloatRows<S>;
  for (int64_t tile = tile_begin; tile < tile_end;) {
    const bool many = tile_end - tile >= kTiles;
    for (int64_t row = row_begin; row < row_end; row += kRows) {
      const int64_t rows = row_end - row < kRows ? row_end - row : kRows;
      if (many) {
        float_rows<S, C, kTiles, kRows>(w, tile, a, row, rows, bias, out, out_stride);
      } else {
        float_rows<S, C, 1, kRows>(w, tile, a, row, rows, bias, out, out_stride);
      }
    }
    tile += many ? kTiles : 1;
  }
}

}  // namespace fewbit
