// The linear kernels, written once over the lanes of simd.h. A file kernels_<instruction set>.cpp
// instantiates them. The lanes are outputs; see linear.h for the chain each output follows and
// walker.h for how weights are read.
#pragma once

#include <cstdint>

#include "linear/layout.h"
#include "linear/linear.h"
#include "linear/walker.h"
#include "simd/simd.h"

namespace fewbit {

// --- one run -------------------------------------------------------------------------------------

// Consecutive rows of one row block, at one run.
struct RunInputs {
  const int8_t* q;  // row r at q + 32 r
  const float* scales;
  const float* weighted;
  const int32_t* centre;
  const int32_t* centre16;
  int64_t stride;  // slots from one run to the next

  FEWBIT_INLINE RunInputs at(const Activations& a, int64_t row, int64_t run) {
    const int64_t slot = a.slot(row, run);
    const int64_t start = row - row % kRowBlock;
    const int64_t left = a.rows - start;
    return {a.q + kGroup * slot, a.scales + slot,       a.weighted + slot,
            a.centre + slot,     a.centre16 + 2 * slot, left < kRowBlock ? left : kRowBlock};
  }

  FEWBIT_INLINE void advance(RunInputs& in) {
    in.q += kGroup * in.stride;
    in.scales += in.stride;
    in.weighted += in.stride;
    in.centre += in.stride;
    in.centre16 += 2 * in.stride;
  }
};

// -c sum for the middle c of the codes, from what codes of `kBits` bits take.
template <class S, Codes C, int kBits>
FEWBIT_INLINE typename S::I32 centred(int32_t centre) {
  constexpr int kShift = bits_of(C) - kBits;
  const typename S::I32 a = S::set1(centre);
  if constexpr (kShift < 0) return S::template shift_right<-kShift>(a);
  if constexpr (kShift == 0) return a;
  if constexpr (kShift > 0) return S::template shift_left<kShift>(a);
}

// What the zero point adds to the dot of row r: -z * sum(q); of one half where a run has halves.
template <class S, Codes C, Scaling K>
FEWBIT_INLINE typename S::I32 start_dot(const RunInputs& in, const RunScales<S, K>& s, int r,
                                        int half) {
  if constexpr (has_minimum(K)) {
    return S::zero_i32();
  } else if constexpr (K == Scaling::kAsymmetric) {
    // |8 sum| <= 8 * 32 * 127 fits the signed low half; z has no high half.
    return S::template shift_right<3>(S::madd16(s.zero, S::set1(in.centre[r])));
  } else if constexpr (K == Scaling::kHigh) {
    return S::set1((241 * in.centre[r]) >> 8);  // 7.53125 is 241 / 32
  } else if constexpr (has_halves(K)) {
    return centred<S, C, 6>(in.centre16[2 * r + half]);
  } else {
    return centred<S, C, 4>(in.centre[r]);
  }
}

template <class S, Codes C>
FEWBIT_INLINE typename S::I32 dot(typename S::I32 acc, typename S::U8 u, typename S::U8 q) {
  if constexpr (bits_of(C) == 8) return S::dot4(acc, u, q);
  return S::dot4_u7(acc, u, q);
}

// The dot with the same 4 inputs in every lane.
template <class S, Codes C>
FEWBIT_INLINE typename S::I32 dot_at(typename S::I32 acc, typename S::U8 u, const int8_t* inputs) {
  if constexpr (requires { S::dot4_at(acc, u, inputs); }) {
    return S::dot4_at(acc, u, inputs);
  } else {
    return dot<S, C>(acc, u, S::broadcast4(inputs));
  }
}

// The float part of the chain for row r, of one half where a run has halves.
template <class S, Scaling K>
FEWBIT_INLINE typename S::F32 add_part(typename S::F32 acc, typename S::I32 dot,
                                       const RunInputs& in, const RunScales<S, K>& s, int r,
                                       int half) {
  const typename S::F32 scale_a = S::set1(in.scales[r]);
  acc = S::fma(S::convert(dot), S::mul(s.scale[half], scale_a), acc);
  if constexpr (K == Scaling::kTwoLevel16) {
    // -weighted: (-m) weighted and m (-weighted) are the same.
    const typename S::I32 minus_sum =
        S::template shift_right<5>(S::set1(in.centre16[2 * r + half]));
    acc = S::fma(s.minimum[half], S::mul(S::convert(minus_sum), scale_a), acc);
  } else if constexpr (has_minimum(K)) {
    acc = S::fma(s.minimum[half], S::set1(in.weighted[r]), acc);
  }
  return acc;
}

// --- few rows: each weight is read and unpacked once for R rows ----------------------------------

template <class S, Codes C, Scaling K, int R, int V>
FEWBIT_INLINE void dot_pair(const RunCodes& codes, const int8_t* q, typename S::I32 (&first)[R],
                            typename S::I32 (&second)[R]) {
  prefetch_codes<S, C>(codes, V, V + 1);
  typename S::U8 low, high;
  unpack_pair<S, C, V>(codes, low, high);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const int8_t* inputs = q + kGroup * r + 4 * V;
    first[r] = dot_at<S, C>(first[r], low, inputs);
    second[r] = dot_at<S, C>(second[r], high, inputs + 16);
  }
}

template <class S, Codes C, Scaling K, int R>
FEWBIT_INLINE void few_rows(const PackedMatrix& w, int64_t tile, RunInputs in,
                            typename S::F32 (&acc)[R]) {
  using I32 = typename S::I32;
  // Four rows have chains enough side by side without two a row, and save an addition each.
  constexpr bool kOneSum = !has_halves(K) && R >= 4;
  StepBuffer<K> buffer;
  auto walker = Walker<S, C, K>::start(w, tile, buffer);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = S::zero_f32();
  for (int64_t run = w.columns / kGroup; run; --run) {
    const RunCodes codes = Walker<S, C, K>::step(walker);
    I32 first[R], own[R];
    I32(&second)[R] = kOneSum ? first : own;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      first[r] = start_dot<S, C, K>(in, walker.scales, r, 0);
      if constexpr (!kOneSum) {
        second[r] = has_halves(K) ? start_dot<S, C, K>(in, walker.scales, r, 1) : S::zero_i32();
      }
    }
    dot_pair<S, C, K, R, 0>(codes, in.q, first, second);
    dot_pair<S, C, K, R, 1>(codes, in.q, first, second);
    dot_pair<S, C, K, R, 2>(codes, in.q, first, second);
    dot_pair<S, C, K, R, 3>(codes, in.q, first, second);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if constexpr (!has_halves(K) && !kOneSum) first[r] = S::add(first[r], second[r]);
      acc[r] = add_part<S, K>(acc[r], first[r], in, walker.scales, r, 0);
      if constexpr (has_halves(K)) {
        acc[r] = add_part<S, K>(acc[r], second[r], in, walker.scales, r, 1);
      }
    }
    RunInputs::advance(in);
  }
}

// Outputs of one tile: where they go and what is added last.
template <class S>
struct TileOut {
  float* out;
  int64_t stride;
  typename S::F32 bias;
  int lanes;

  FEWBIT_INLINE TileOut at(const PackedMatrix& w, int64_t tile, const float* bias, float* out,
                           int64_t stride) {
    const int64_t first = tile * kTileRows;
    const int64_t left = w.rows - first;
    const int lanes = static_cast<int>(left < kTileRows ? left : kTileRows);
    return {out + first, stride, bias ? S::load_n(bias + first, lanes) : S::zero_f32(), lanes};
  }

  FEWBIT_INLINE typename S::F32 load(const TileOut& t, int64_t row) {
    return S::load_n(t.out + row * t.stride, t.lanes);
  }

  FEWBIT_INLINE void store(const TileOut& t, int64_t row, typename S::F32 acc) {
    S::store_n(t.out + row * t.stride, acc, t.lanes);
  }

  FEWBIT_INLINE void finish(const TileOut& t, int64_t row, typename S::F32 acc) {
    store(t, row, S::add(acc, t.bias));
  }
};

template <class S, Codes C, Scaling K, int R>
void few_rows_of_tile(const PackedMatrix& w, int64_t tile, const Activations& a, int64_t row,
                      const TileOut<S>& to) {
  typename S::F32 acc[R];
  few_rows<S, C, K, R>(w, tile, RunInputs::at(a, row, 0), acc);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) TileOut<S>::finish(to, row + r, acc[r]);
}

// Rows that one pass over a tile's weights takes: as many as keep accumulators in registers.
template <class S>
inline constexpr int kFewRows = S::kRegisters >= 32   ? 8
                                : S::kRegisters >= 16 ? 4
                                                      : 2;

// Formats that most files hold have a kernel for each number of rows, and one for a tile left over.
// The others, so that compiling takes no longer for them, have powers of two alone.
constexpr bool is_common(Codes codes, Scaling scaling) {
  const bool common_codes =
      codes == Codes::kBits4 || codes == Codes::kBits5 || codes == Codes::kBits8;
  return (common_codes && scaling != Scaling::kAsymmetric) || codes == Codes::kIq4 ||
         codes == Codes::kNested8 || scaling == Scaling::kSigned16;
}

template <class S, Codes C, Scaling K>
inline constexpr int kMostRows = is_common(C, K) || S::kRegisters > 0 ? kFewRows<S> : 1;

// Takes the first `rows` rows or fewer; returns how many.
template <class S, Codes C, Scaling K, int R>
FEWBIT_INLINE int64_t dispatch_rows(const PackedMatrix& w, int64_t tile, const Activations& a,
                                    int64_t row, int64_t rows, const TileOut<S>& to) {
  if constexpr (R > 1) {
    constexpr int kFewer = is_common(C, K) ? R - 1 : R / 2;
    if (rows < R) return dispatch_rows<S, C, K, kFewer>(w, tile, a, row, rows, to);
  }
  few_rows_of_tile<S, C, K, R>(w, tile, a, row, to);
  return R;
}

// The largest piece of [row, row_end) that lies in one row block and has at most `most` rows.
FEWBIT_INLINE int64_t piece_of(int64_t row, int64_t row_end, int64_t most) {
  const int64_t block_end = row - row % kRowBlock + kRowBlock;
  const int64_t end = row_end < block_end ? row_end : block_end;
  return end - row < most ? end - row : most;
}

// Every row of [row_begin, row_end) against the tiles, a few rows a pass.
template <class S, Codes C, Scaling K>
void multiply_few(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const Activations& a,
                  int64_t row_begin, int64_t row_end, const float* bias, float* out,
                  int64_t out_stride) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const auto to = TileOut<S>::at(w, tile, bias, out, out_stride);
    for (int64_t row = row_begin; row < row_end;) {
      const int64_t rows = piece_of(row, row_end, kMostRows<S, C, K>);
      row += dispatch_rows<S, C, K, kMostRows<S, C, K>>(w, tile, a, row, rows, to);
    }
  }
}

}  // namespace fewbit
