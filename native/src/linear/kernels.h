// The linear kernels, written once over the lanes of simd.h. A file kernels_<instruction set>.cpp
// instantiates them. The lanes are outputs; see linear.h for the chain each output follows and
// layout.h for the bytes read here.
#pragma once

#include <cstdint>

#include "linear/layout.h"
#include "linear/linear.h"
#include "simd/simd.h"

namespace fewbit {

// How far ahead of its use a weight is asked for. Flat from 4 to 16 KiB; without it, one row runs
// as fast, but four cost 1.26 instead of 1.11 (q4_0, one thread of a Xeon with 28 GB/s a thread).
inline constexpr int kPrefetchAhead = 8192;

// --- codes -> bytes ------------------------------------------------------------------------------

// Quads V and V + 4 of a run.
template <class S, Codes C, int V>
FEWBIT_INLINE void unpack_pair(const uint8_t* codes, typename S::U8& low, typename S::U8& high) {
  using U8 = typename S::U8;
  if constexpr (C == Codes::kBits8) {
    low = S::load_u8(codes + kVector * V);
    high = S::load_u8(codes + kVector * (V + 4));
  } else {
    const U8 nibble = S::set1_u8(0x0f);
    const U8 both = S::load_u8(codes + kVector * V);
    low = S::and_u8(both, nibble);
    high = S::and_u8(S::template srl<4>(both), nibble);
    if constexpr (C == Codes::kBits5) {
      const U8 bit = S::set1_u8(0x10);
      const U8 fifth = S::load_u8(codes + kVector * 4);
      low = S::and_or(S::template sll<4 - V>(fifth), bit, low);
      high = S::and_or(S::template srl<V>(fifth), bit, high);
    }
    if constexpr (C == Codes::kBits6) {
      const U8 pair = S::set1_u8(0x30);
      U8 first = S::load_u8(codes + kVector * 4);
      U8 second = S::load_u8(codes + kVector * 5);
      if constexpr (V < 2) {
        first = S::template sll<4 - 2 * V>(first);
        second = S::template sll<4 - 2 * V>(second);
      }
      if constexpr (V > 2) {
        first = S::template srl<2>(first);
        second = S::template srl<2>(second);
      }
      low = S::and_or(first, pair, low);
      high = S::and_or(second, pair, high);
    }
  }
}

// --- scales --------------------------------------------------------------------------------------

// The scales of the current run, for 16 outputs. `second` is the minimum, or the scale of the
// second half of a run (kSigned16).
template <class S, Scaling K>
struct RunScales {
  typename S::F32 scale, second;
  typename S::I32 zero;
};

// Steps of 6 bits as bytes, in the order of layout.h.
template <class S>
FEWBIT_INLINE void unpack_six_bit_steps(const uint8_t* packed, uint8_t* steps) {
  using U8 = typename S::U8;
  const U8 nibble = S::set1_u8(0x0f);
  const U8 pair = S::set1_u8(0x30);
  const U8 first = S::load_u8(packed);
  const U8 second = S::load_u8(packed + kVector);
  const U8 pairs = S::load_u8(packed + 2 * kVector);
  S::store_u8(steps, S::and_or(S::template sll<4>(pairs), pair, S::and_u8(first, nibble)));
  S::store_u8(steps + kVector,
              S::and_or(S::template sll<2>(pairs), pair, S::and_u8(second, nibble)));
  S::store_u8(steps + 2 * kVector,
              S::and_or(pairs, pair, S::and_u8(S::template srl<4>(first), nibble)));
  S::store_u8(steps + 3 * kVector, S::and_or(S::template srl<2>(pairs), pair,
                                             S::and_u8(S::template srl<4>(second), nibble)));
}

// Where a walker unpacks the steps of its group, all at once: two operations a run. A variable of
// its own, so that its taken address does not keep the walker out of registers.
template <Scaling K>
struct alignas(kVector) StepBuffer {
  uint8_t steps[K == Scaling::kTwoLevel ? kSteps : 1];
};

// What the runs of a group share where scales have two levels.
template <class S, Scaling K>
struct GroupScales {
  typename S::F32 d, dmin;
  const uint8_t* next;  // the next run's steps

  FEWBIT_INLINE void read(GroupScales& g, const uint8_t* head, uint8_t* unpacked) {
    g.d = S::load_f16(head);
    g.next = head + steps_offset(K);
    if constexpr (K == Scaling::kTwoLevel) {
      g.dmin = S::neg(S::load_f16(head + 32));
      unpack_six_bit_steps<S>(g.next, unpacked);
      g.next = unpacked;
    }
  }

  FEWBIT_INLINE void step(GroupScales& g, RunScales<S, K>& run) {
    if constexpr (K == Scaling::kTwoLevel) {
      run.scale = S::mul(g.d, S::convert(S::load_u8_i32(g.next)));
      run.second = S::mul(g.dmin, S::convert(S::load_u8_i32(g.next + 16)));
    } else {
      run.scale = S::mul(g.d, S::convert(S::load_i8_i32(g.next)));
      run.second = S::mul(g.d, S::convert(S::load_i8_i32(g.next + 16)));
    }
    g.next += kRunSteps;
  }
};

// Where a run's scales are its group's.
template <class S, Scaling K>
FEWBIT_INLINE void read_scales(RunScales<S, K>& run, const uint8_t* head) {
  run.scale = S::load_f16(head);
  if constexpr (K == Scaling::kMinimum) run.second = S::load_f16(head + 32);
  if constexpr (K == Scaling::kAsymmetric) run.zero = S::load_u8_i32(head + 32);
}

// Walks the runs of a tile.
template <class S, Codes C, Scaling K>
struct Walker {
  const uint8_t* next;
  uint8_t* unpacked;
  int64_t runs_in_group;
  int64_t left;
  RunScales<S, K> scales;
  GroupScales<S, K> group;

  FEWBIT_INLINE Walker start(const PackedMatrix& w, int64_t tile, StepBuffer<K>& buffer) {
    Walker walker;
    walker.next = w.data + static_cast<size_t>(tile) * w.tile_bytes;
    walker.unpacked = buffer.steps;
    walker.runs_in_group = w.group / kGroup;
    walker.left = 0;
    return walker;
  }

  // Reads the next run's scales and returns its codes.
  FEWBIT_INLINE const uint8_t* step(Walker& walker) {
    if (walker.left == 0) {
      if constexpr (steps_bytes(K) > 0) {
        GroupScales<S, K>::read(walker.group, walker.next, walker.unpacked);
        for (size_t line = 0; line < head_bytes(K); line += kVector) {
          S::prefetch(walker.next + kPrefetchAhead + line);
        }
      } else {
        read_scales<S, K>(walker.scales, walker.next);
      }
      walker.next += head_bytes(K);
      walker.left = walker.runs_in_group;
    }
    if constexpr (steps_bytes(K) > 0) GroupScales<S, K>::step(walker.group, walker.scales);
    const uint8_t* codes = walker.next;
    walker.next += code_bytes(C);
    --walker.left;
    return codes;
  }
};

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

// What the zero point adds to the dot of row r: -z * sum(q). For kSigned16 of one half.
template <class S, Codes C, Scaling K>
FEWBIT_INLINE typename S::I32 start_dot(const RunInputs& in, const RunScales<S, K>& s, int r,
                                        int half) {
  if constexpr (K == Scaling::kSymmetric) {
    // centre is -8 sum; the middle of b bits is 8 << (b - 4).
    return S::template shift_left<bits_of(C) - 4>(S::set1(in.centre[r]));
  } else if constexpr (K == Scaling::kAsymmetric) {
    // |8 sum| <= 8 * 32 * 127 fits the signed low half; z has no high half.
    return S::template shift_right<3>(S::madd16(s.zero, S::set1(in.centre[r])));
  } else if constexpr (K == Scaling::kSigned16) {
    return S::template shift_left<2>(S::set1(in.centre16[2 * r + half]));
  } else {
    return S::zero_i32();
  }
}

template <class S, Codes C>
FEWBIT_INLINE typename S::I32 dot(typename S::I32 acc, typename S::U8 u, typename S::U8 q) {
  if constexpr (C == Codes::kBits8) return S::dot4(acc, u, q);
  return S::dot4_u7(acc, u, q);
}

template <class S>
FEWBIT_INLINE typename S::F32 add_half(typename S::F32 acc, typename S::I32 dot,
                                       typename S::F32 scale_w, float scale_a) {
  return S::fma(S::convert(dot), S::mul(scale_w, S::set1(scale_a)), acc);
}

// The float part of the chain for row r.
template <class S, Scaling K>
FEWBIT_INLINE typename S::F32 add_run(typename S::F32 acc, typename S::I32 first,
                                      typename S::I32 second, const RunInputs& in,
                                      const RunScales<S, K>& s, int r) {
  acc = add_half<S>(acc, first, s.scale, in.scales[r]);
  if constexpr (K == Scaling::kSigned16) acc = add_half<S>(acc, second, s.second, in.scales[r]);
  if constexpr (K == Scaling::kMinimum || K == Scaling::kTwoLevel) {
    acc = S::fma(s.second, S::set1(in.weighted[r]), acc);
  }
  return acc;
}

// --- few rows: each weight is read and unpacked once for R rows ----------------------------------

template <class S, Codes C, Scaling K, int R, int V>
FEWBIT_INLINE void dot_pair(const uint8_t* codes, const int8_t* q, typename S::I32 (&first)[R],
                            typename S::I32 (&second)[R]) {
  typename S::U8 low, high;
  unpack_pair<S, C, V>(codes, low, high);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const int8_t* inputs = q + kGroup * r + 4 * V;
    first[r] = dot<S, C>(first[r], low, S::broadcast4(inputs));
    second[r] = dot<S, C>(second[r], high, S::broadcast4(inputs + 16));
  }
}

template <class S, Codes C, Scaling K, int R>
FEWBIT_INLINE void few_rows(const PackedMatrix& w, int64_t tile, RunInputs in,
                            typename S::F32 (&acc)[R]) {
  using I32 = typename S::I32;
  StepBuffer<K> buffer;
  auto walker = Walker<S, C, K>::start(w, tile, buffer);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = S::zero_f32();
  for (int64_t run = w.columns / kGroup; run; --run) {
    const uint8_t* codes = Walker<S, C, K>::step(walker);
    for (size_t line = 0; line < code_bytes(C); line += kVector) {
      S::prefetch(codes + kPrefetchAhead + line);
    }
    I32 first[R], second[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      first[r] = start_dot<S, C, K>(in, walker.scales, r, 0);
      second[r] =
          K == Scaling::kSigned16 ? start_dot<S, C, K>(in, walker.scales, r, 1) : S::zero_i32();
    }
    dot_pair<S, C, K, R, 0>(codes, in.q, first, second);
    dot_pair<S, C, K, R, 1>(codes, in.q, first, second);
    dot_pair<S, C, K, R, 2>(codes, in.q, first, second);
    dot_pair<S, C, K, R, 3>(codes, in.q, first, second);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if constexpr (K != Scaling::kSigned16) first[r] = S::add(first[r], second[r]);
      acc[r] = add_run<S, K>(acc[r], first[r], second[r], in, walker.scales, r);
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

template <class S, Codes C, Scaling K, int R>
FEWBIT_INLINE void dispatch_rows(const PackedMatrix& w, int64_t tile, const Activations& a,
                                 int64_t row, int64_t rows, const TileOut<S>& to) {
  if constexpr (R > 1) {
    if (rows < R) return dispatch_rows<S, C, K, R - 1>(w, tile, a, row, rows, to);
  }
  few_rows_of_tile<S, C, K, R>(w, tile, a, row, to);
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
      const int64_t rows = piece_of(row, row_end, kFewRows<S>);
      dispatch_rows<S, C, K, kFewRows<S>>(w, tile, a, row, rows, to);
      row += rows;
    }
  }
}

}  // namespace fewbit
