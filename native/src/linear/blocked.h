// Many rows: the weights of two tiles are unpacked a chunk of inputs at a time into the first-level
// cache, and register tiles of two tiles x 4 rows run over them. Between chunks the accumulators
// rest in `out`, so the chain of each output is the one of kernels.h.
#pragma once

#include "linear/kernels.h"

namespace fewbit {

inline constexpr int kChunkRuns = 16;  // 8 KiB of bytes a tile
inline constexpr int kBlockTiles = 2;
inline constexpr int kBlockRows = 4;

template <Scaling K>
struct alignas(kVector) UnpackedScales {
  static constexpr int kHalves = has_halves(K) ? 2 : 1;
  float scale[kHalves][kLanes];
  float minimum[has_minimum(K) ? kHalves : 0][kLanes];
  int32_t zero[K == Scaling::kAsymmetric ? 1 : 0][kLanes];
};

template <Scaling K>
struct alignas(kVector) UnpackedTile {
  uint8_t codes[kChunkRuns][kQuads][kVector];
  UnpackedScales<K> scales[kChunkRuns];
};

template <class S, Scaling K>
FEWBIT_INLINE void store_scales(const RunScales<S, K>& s, UnpackedScales<K>& to) {
  S::store(to.scale[0], s.scale[0]);
  if constexpr (has_halves(K)) S::store(to.scale[1], s.scale[1]);
  if constexpr (has_minimum(K)) S::store(to.minimum[0], s.minimum[0]);
  if constexpr (has_minimum(K) && has_halves(K)) S::store(to.minimum[1], s.minimum[1]);
  if constexpr (K == Scaling::kAsymmetric) S::store(to.zero[0], s.zero);
}

template <class S, Scaling K>
FEWBIT_INLINE RunScales<S, K> load_scales(const UnpackedScales<K>& from) {
  RunScales<S, K> s;
  s.scale[0] = S::load(from.scale[0]);
  if constexpr (has_halves(K)) s.scale[1] = S::load(from.scale[1]);
  if constexpr (has_minimum(K)) s.minimum[0] = S::load(from.minimum[0]);
  if constexpr (has_minimum(K) && has_halves(K)) s.minimum[1] = S::load(from.minimum[1]);
  if constexpr (K == Scaling::kAsymmetric) s.zero = S::load(from.zero[0]);
  return s;
}

template <class S, Codes C, int V>
FEWBIT_INLINE void store_pair(const RunCodes& codes, uint8_t (*out)[kVector]) {
  typename S::U8 low, high;
  unpack_pair<S, C, V>(codes, low, high);
  S::store_u8(out[V], low);
  S::store_u8(out[V + 4], high);
}

template <class S, Codes C, Scaling K>
void unpack_chunk(Walker<S, C, K>& walker, int runs, UnpackedTile<K>& to) {
  for (int i = 0; i < runs; ++i) {
    const RunCodes codes = Walker<S, C, K>::step(walker);
    store_pair<S, C, 0>(codes, to.codes[i]);
    store_pair<S, C, 1>(codes, to.codes[i]);
    store_pair<S, C, 2>(codes, to.codes[i]);
    store_pair<S, C, 3>(codes, to.codes[i]);
    store_scales<S, K>(walker.scales, to.scales[i]);
  }
}

// Which rows and inputs a register tile covers, and whether it begins and ends the chain.
struct Span {
  int64_t row;
  int runs;
  bool first;
  bool last;
};

template <class S, Codes C, int T, int R, Scaling K>
FEWBIT_INLINE void dot_quads(const UnpackedTile<K>* tiles, int run, int begin, int end,
                             const int8_t* q, typename S::I32 (&dots)[T][R]) {
#pragma GCC unroll 8
  for (int j = begin; j < end; ++j) {
    typename S::U8 codes[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) codes[t] = S::load_u8(tiles[t].codes[run][j]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename S::U8 inputs = S::broadcast4(q + kGroup * r + 4 * j);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) dots[t][r] = dot<S, C>(dots[t][r], codes[t], inputs);
    }
  }
}

template <class S, Codes C, Scaling K, int T, int R>
void register_tile(const UnpackedTile<K>* tiles, const TileOut<S>* to, RunInputs in,
                   const Span& span) {
  typename S::F32 acc[T][R];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      acc[t][r] = span.first ? S::zero_f32() : TileOut<S>::load(to[t], span.row + r);
    }
  }
  for (int run = 0; run < span.runs; ++run) {
    RunScales<S, K> scales[T];
    typename S::I32 dots[T][R];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      scales[t] = load_scales<S, K>(tiles[t].scales[run]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) dots[t][r] = start_dot<S, C, K>(in, scales[t], r, 0);
    }
    if constexpr (has_halves(K)) {
      dot_quads<S, C, T, R>(tiles, run, 0, 4, in.q, dots);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          acc[t][r] = add_part<S, K>(acc[t][r], dots[t][r], in, scales[t], r, 0);
          dots[t][r] = start_dot<S, C, K>(in, scales[t], r, 1);
        }
      }
    }
    constexpr int kLastHalf = has_halves(K) ? 1 : 0;
    dot_quads<S, C, T, R>(tiles, run, 4 * kLastHalf, 8, in.q, dots);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        acc[t][r] = add_part<S, K>(acc[t][r], dots[t][r], in, scales[t], r, kLastHalf);
      }
    }
    RunInputs::advance(in);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (span.last) {
        TileOut<S>::finish(to[t], span.row + r, acc[t][r]);
      } else {
        TileOut<S>::store(to[t], span.row + r, acc[t][r]);
      }
    }
  }
}

template <class S, Codes C, Scaling K, int T>
void multiply_tiles(const PackedMatrix& w, int64_t tile, const Activations& a, int64_t row_begin,
                    int64_t row_end, const float* bias, float* out, int64_t out_stride) {
  UnpackedTile<K> tiles[T];
  StepBuffer<K> buffers[T];
  Walker<S, C, K> walkers[T];
  TileOut<S> to[T];
  for (int t = 0; t < T; ++t) {
    walkers[t] = Walker<S, C, K>::start(w, tile + t, buffers[t]);
    to[t] = TileOut<S>::at(w, tile + t, bias, out, out_stride);
  }
  const int64_t runs = w.columns / kGroup;
  for (int64_t done = 0; done < runs; done += kChunkRuns) {
    const int count = static_cast<int>(runs - done < kChunkRuns ? runs - done : kChunkRuns);
    for (int t = 0; t < T; ++t) unpack_chunk<S, C, K>(walkers[t], count, tiles[t]);
    for (int64_t row = row_begin; row < row_end;) {
      const Span span{row, count, done == 0, done + count == runs};
      const RunInputs in = RunInputs::at(a, row, done);
      if (piece_of(row, row_end, kBlockRows) == kBlockRows) {
        register_tile<S, C, K, T, kBlockRows>(tiles, to, in, span);
        row += kBlockRows;
      } else {
        register_tile<S, C, K, T, 1>(tiles, to, in, span);
        row += 1;
      }
    }
  }
}

template <class S, Codes C, Scaling K>
void multiply_blocked(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                      const Activations& a, int64_t row_begin, int64_t row_end, const float* bias,
                      float* out, int64_t out_stride) {
  int64_t tile = tile_begin;
  for (; tile + kBlockTiles <= tile_end; tile += kBlockTiles) {
    multiply_tiles<S, C, K, kBlockTiles>(w, tile, a, row_begin, row_end, bias, out, out_stride);
  }
  if (tile == tile_end) return;
  if constexpr (is_common(C, K)) {
    multiply_tiles<S, C, K, 1>(w, tile, a, row_begin, row_end, bias, out, out_stride);
  } else {
    multiply_few<S, C, K>(w, tile, tile_end, a, row_begin, row_end, bias, out, out_stride);
  }
}

}  // namespace fewbit
