// Integer weights with activations rounded to bf16: the chain of WeightOnlyKernels in linear.h.
//
// A few runs of a tile or two are unpacked to floats in the first-level cache, then every row runs
// over them, so one path serves one row and a whole prompt. Between such chunks the accumulators
// rest in `out`. What a format is stays with kernels.h: a weight u - z is the integer dot there
// with an input that is 1 where the others are 0.
#pragma once

#include "linear/kernels.h"
#include "linear/table.h"

namespace fewbit {

// --- activations ---------------------------------------------------------------------------------

// To nearest even: half of the last kept place is added, less one unit where that place is even.
template <class S>
FEWBIT_INLINE typename S::F32 round_to_bfloat(typename S::F32 x) {
  const typename S::I32 bits = S::bits(x);
  const typename S::I32 odd = S::bit_and(S::template shift_right<16>(bits), S::set1(1));
  const typename S::I32 sum = S::add(S::add(bits, S::set1(0x7fff)), odd);
  const auto rounded = S::from_bits(S::bit_and(sum, S::set1(static_cast<int32_t>(0xffff0000))));
  return S::select(S::equal(x, x), rounded, x);
}

template <class S>
void round_row(const float* x, int64_t columns, float* values, float* sums) {
  for (int64_t c = 0; c < columns; c += kLanes) {
    const typename S::F32 rounded = round_to_bfloat<S>(S::load(x + c));
    S::store(values + c, rounded);
    sums[c / kLanes] = S::reduce_add(rounded);
  }
}

// --- weights -------------------------------------------------------------------------------------

inline constexpr int kFloatRuns = 4;  // unpacked at once: 8 KiB a tile

// How many scales a run has, and whether it has minima: all that the arithmetic needs to know.
struct Terms {
  bool halves;
  bool minima;
};

constexpr Terms terms_of(Scaling scaling) { return {has_halves(scaling), has_minimum(scaling)}; }

struct alignas(kVector) FloatTile {
  float weights[kFloatRuns][kGroup][kLanes];
  float scale[kFloatRuns][2][kLanes];    // of the whole run, or of each half
  float minimum[kFloatRuns][2][kLanes];  // as the chain adds it
};

// An input that is 1 at place b of its quad, and what kernels.h wants to know of a run of it.
inline constexpr uint8_t kOne[4][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};
inline constexpr int32_t kCentreOfOne[1] = {-8};
inline constexpr int32_t kCentre16OfOne[2] = {-32, -32};
inline constexpr RunInputs kOneInput{nullptr, nullptr, nullptr, kCentreOfOne, kCentre16OfOne, 0};

template <class S, Codes C, int V>
FEWBIT_INLINE void unpack_quads(const RunCodes& codes, typename S::I32 first,
                                typename S::I32 second, float (*out)[kLanes]) {
  typename S::U8 low, high;
  unpack_pair<S, C, V>(codes, low, high);
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    const typename S::U8 one = S::broadcast4(kOne[b]);
    S::store(out[4 * V + b], S::convert(dot<S, C>(first, low, one)));
    S::store(out[4 * V + b + 16], S::convert(dot<S, C>(second, high, one)));
  }
}

template <class S, Codes C, Scaling K>
void unpack_floats(Walker<S, C, K>& walker, int runs, FloatTile& to) {
  for (int i = 0; i < runs; ++i) {
    const RunCodes codes = Walker<S, C, K>::step(walker);
    prefetch_codes<S, C>(codes, 0, 4);
    const typename S::I32 first = start_dot<S, C, K>(kOneInput, walker.scales, 0, 0);
    const typename S::I32 second = start_dot<S, C, K>(kOneInput, walker.scales, 0, 1);
    unpack_quads<S, C, 0>(codes, first, second, to.weights[i]);
    unpack_quads<S, C, 1>(codes, first, second, to.weights[i]);
    unpack_quads<S, C, 2>(codes, first, second, to.weights[i]);
    unpack_quads<S, C, 3>(codes, first, second, to.weights[i]);
    for (int half = 0; half < (has_halves(K) ? 2 : 1); ++half) {
      S::store(to.scale[i][half], walker.scales.scale[half]);
      if constexpr (has_minimum(K)) {
        const typename S::F32 minimum = walker.scales.minimum[half];
        S::store(to.minimum[i][half], K == Scaling::kTwoLevel16 ? S::neg(minimum) : minimum);
      }
    }
  }
}

// --- rows ----------------------------------------------------------------------------------------

template <class S>
inline constexpr int kFloatTilesAtOnce = S::kRegisters >= 32 ? 2 : 1;
template <class S>
inline constexpr int kFloatRowsAtOnce = S::kRegisters >= 32   ? 4
                                        : S::kRegisters >= 16 ? 2
                                                              : 1;

// Which rows and inputs of a chunk run, and whether they begin and end the chain.
struct FloatSpan {
  const float* values;  // of the first row, at the chunk's first input
  const float* sums;
  int64_t stride;  // from row to row, of values
  int64_t sum_stride;
  int64_t row;
  int runs;
  bool first;
  bool last;
};

template <class S, int T, int R>
FEWBIT_INLINE void add_products(const FloatTile* tiles, int run, int begin, const float* x,
                                int64_t stride, typename S::F32 (&p)[T][R]) {
#pragma GCC unroll 4
  for (int i = begin; i < begin + kGroup / 2; ++i) {
    typename S::F32 inputs[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) inputs[r] = S::set1(x[r * stride + i]);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const typename S::F32 weight = S::load(tiles[t].weights[run][i]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) p[t][r] = S::fma(weight, inputs[r], p[t][r]);
    }
  }
}

template <class S, int T, int R>
FEWBIT_INLINE void clear(typename S::F32 (&p)[T][R]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) p[t][r] = S::zero_f32();
  }
}

// Ends the chain p of a run, or of one half of it.
template <class S, Terms K, int T, int R>
FEWBIT_INLINE void add_scaled(const FloatTile* tiles, int run, int half, const FloatSpan& span,
                              const typename S::F32 (&p)[T][R], typename S::F32 (&acc)[T][R]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const typename S::F32 scale = S::load(tiles[t].scale[run][half]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      acc[t][r] = S::fma(p[t][r], scale, acc[t][r]);
      if constexpr (K.minima) {
        const float* sums = span.sums + r * span.sum_stride + 2 * run;
        const float sum = K.halves ? sums[half] : sums[0] + sums[1];
        acc[t][r] = S::fma(S::load(tiles[t].minimum[run][half]), S::set1(sum), acc[t][r]);
      }
    }
  }
}

template <class S, Terms K, int T, int R>
FEWBIT_INLINE void add_float_run(const FloatTile* tiles, int run, const FloatSpan& span,
                                 typename S::F32 (&acc)[T][R]) {
  typename S::F32 p[T][R];
  const float* x = span.values + kGroup * run;
  clear<S, T, R>(p);
  add_products<S, T, R>(tiles, run, 0, x, span.stride, p);
  if constexpr (K.halves) {
    add_scaled<S, K, T, R>(tiles, run, 0, span, p, acc);
    clear<S, T, R>(p);
  }
  add_products<S, T, R>(tiles, run, kGroup / 2, x, span.stride, p);
  add_scaled<S, K, T, R>(tiles, run, K.halves ? 1 : 0, span, p, acc);
}

template <class S, Terms K, int T, int R>
void float_tile_rows(const FloatTile* tiles, const TileOut<S>* to, const FloatSpan& span) {
  typename S::F32 acc[T][R];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      acc[t][r] = span.first ? S::zero_f32() : TileOut<S>::load(to[t], span.row + r);
    }
  }
  for (int run = 0; run < span.runs; ++run) add_float_run<S, K, T, R>(tiles, run, span, acc);
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

template <class S, Terms K, int T, int R>
FEWBIT_INLINE void dispatch_float_rows(int64_t rows, const FloatTile* tiles, const TileOut<S>* to,
                                       const FloatSpan& span) {
  if constexpr (R > 1) {
    if (rows < R) return dispatch_float_rows<S, K, T, R - 1>(rows, tiles, to, span);
  }
  float_tile_rows<S, K, T, R>(tiles, to, span);
}

// --- tiles ---------------------------------------------------------------------------------------

// Every row of [row_begin, row_end) over the unpacked runs [begin, begin + runs) of T tiles.
template <class S, Terms K, int T>
void float_chunk(const FloatTile* tiles, const TileOut<S>* to, const BfloatActivations& a,
                 int64_t begin, int runs, int64_t row_begin, int64_t row_end) {
  constexpr int kMost = kFloatRowsAtOnce<S>;
  const bool last = (begin + runs) * kGroup == a.columns;
  for (int64_t row = row_begin; row < row_end; row += kMost) {
    const FloatSpan span{a.values + row * a.columns + begin * kGroup,
                         a.sums + row * a.halves() + 2 * begin,
                         a.columns,
                         a.halves(),
                         row,
                         runs,
                         begin == 0,
                         last};
    const int64_t left = row_end - row;
    dispatch_float_rows<S, K, T, kMost>(left < kMost ? left : kMost, tiles, to, span);
  }
}

template <class S, Codes C, Scaling K, int T>
void weight_only_tiles(const PackedMatrix& w, int64_t tile, const BfloatActivations& a,
                       int64_t row_begin, int64_t row_end, const float* bias, float* out,
                       int64_t out_stride) {
  FloatTile tiles[T];
  StepBuffer<K> buffers[T];
  Walker<S, C, K> walkers[T];
  TileOut<S> to[T];
  for (int t = 0; t < T; ++t) {
    walkers[t] = Walker<S, C, K>::start(w, tile + t, buffers[t]);
    to[t] = TileOut<S>::at(w, tile + t, bias, out, out_stride);
  }
  const int64_t runs = w.columns / kGroup;
  for (int64_t done = 0; done < runs; done += kFloatRuns) {
    const int count = static_cast<int>(runs - done < kFloatRuns ? runs - done : kFloatRuns);
    for (int t = 0; t < T; ++t) unpack_floats<S, C, K>(walkers[t], count, tiles[t]);
    float_chunk<S, terms_of(K), T>(tiles, to, a, done, count, row_begin, row_end);
  }
}

template <class S>
void multiply_weight_only(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                          const BfloatActivations& a, int64_t row_begin, int64_t row_end,
                          const float* bias, float* out, int64_t out_stride) {
  constexpr int kTiles = kFloatTilesAtOnce<S>;
  with_integer_format(w, [&]<Codes C, Scaling K>() {
    int64_t tile = tile_begin;
    for (; tile + kTiles <= tile_end; tile += kTiles) {
      weight_only_tiles<S, C, K, kTiles>(w, tile, a, row_begin, row_end, bias, out, out_stride);
    }
    for (; tile < tile_end; ++tile) {
      weight_only_tiles<S, C, K, 1>(w, tile, a, row_begin, row_end, bias, out, out_stride);
    }
  });
}

template <class S>
inline constexpr WeightOnlyKernels kWeightOnly{round_row<S>, multiply_weight_only<S>};

}  // namespace fewbit
