// The linear kernels, written once over the lanes of simd.h. A file kernels_<instruction set>.cpp
// instantiates them. The lanes are outputs; see linear.h for the chain each output follows and
// layout.h for the bytes read here.
#pragma once

#include <cstdint>

#include "linear/layout.h"
#include "linear/linear.h"
#include "simd/simd.h"
#include "simd/stream.h"

namespace fewbit {

// --- codes -> bytes ------------------------------------------------------------------------------

// Bits moved up by N (down where N < 0) within 16-bit words.
template <class S, int N>
FEWBIT_INLINE typename S::U8 moved(typename S::U8 a) {
  if constexpr (N > 0) return S::template sll<N>(a);
  if constexpr (N < 0) return S::template srl<-N>(a);
  if constexpr (N == 0) return a;
}

// Puts the pairs of quads V and V + 4 at bit kTo of `low` and `high`.
template <class S, int V, int kTo>
FEWBIT_INLINE void add_pairs(const uint8_t* plane, typename S::U8& low, typename S::U8& high) {
  const typename S::U8 mask = S::set1_u8(3 << kTo);
  low = S::and_or(moved<S, kTo - 2 * V>(S::load_u8(plane)), mask, low);
  high = S::and_or(moved<S, kTo - 2 * V>(S::load_u8(plane + kVector)), mask, high);
}

// The same of single bits.
template <class S, int V, int kTo>
FEWBIT_INLINE void add_bits(const uint8_t* plane, typename S::U8& low, typename S::U8& high) {
  const typename S::U8 mask = S::set1_u8(1 << kTo);
  const typename S::U8 bits = S::load_u8(plane);
  low = S::and_or(moved<S, kTo - V>(bits), mask, low);
  high = S::and_or(moved<S, kTo - V - 4>(bits), mask, high);
}

// Where the codes of a run are; those of kNested8 have their lower halves at `lower`.
struct RunCodes {
  const uint8_t* at;
  const uint8_t* lower;
};

// Quads V and V + 4 of a run.
template <class S, Codes C, int V>
FEWBIT_INLINE void unpack_pair(const RunCodes& run, typename S::U8& low, typename S::U8& high) {
  using U8 = typename S::U8;
  const uint8_t* codes = run.at;
  if constexpr (C == Codes::kNested8) {
    const U8 upper = S::set1_u8(0xf0), nibble = S::set1_u8(0x0f);
    const U8 above = S::load_u8(codes + kVector * V);
    const U8 below = S::load_u8(run.lower + kVector * V);
    low = S::and_or(S::template sll<4>(above), upper, S::and_u8(below, nibble));
    high = S::and_or(above, upper, S::and_u8(S::template srl<4>(below), nibble));
  } else if constexpr (C == Codes::kBits8) {
    low = S::load_u8(codes + kVector * V);
    high = S::load_u8(codes + kVector * (V + 4));
  } else if constexpr (C == Codes::kBits2 || C == Codes::kBits3) {
    const U8 pair = S::set1_u8(3);
    low = S::and_u8(moved<S, -2 * V>(S::load_u8(codes)), pair);
    high = S::and_u8(moved<S, -2 * V>(S::load_u8(codes + kVector)), pair);
    if constexpr (C == Codes::kBits3) add_bits<S, V, 2>(codes + 2 * kVector, low, high);
  } else {
    const U8 nibble = S::set1_u8(0x0f);
    const U8 both = S::load_u8(codes + kVector * V);
    low = S::and_u8(both, nibble);
    high = S::and_u8(S::template srl<4>(both), nibble);
    const uint8_t* plane = codes + kVector * 4;
    if constexpr (C == Codes::kBits5) add_bits<S, V, 4>(plane, low, high);
    if constexpr (C == Codes::kBits6 || C == Codes::kBits7) add_pairs<S, V, 4>(plane, low, high);
    if constexpr (C == Codes::kBits7) add_bits<S, V, 6>(plane + 2 * kVector, low, high);
    if constexpr (is_table(C)) {
      const U8 table = S::repeat16(table_of(C));
      low = S::lookup16(table, low);
      high = S::lookup16(table, high);
    }
  }
}

// --- scales --------------------------------------------------------------------------------------

// The scales of the current run, for 16 outputs; those of its second half where it has halves. The
// minima are as the chain adds them, but for kTwoLevel16 with the other sign.
template <class S, Scaling K>
struct RunScales {
  typename S::F32 scale[2], minimum[2];
  typename S::I32 zero;
};

// 256 steps of 6 bits as bytes, in their order, with `offset` taken off (wrapping).
template <class S>
FEWBIT_INLINE void unpack_six_bit_steps(const uint8_t* packed, uint8_t offset, uint8_t* steps) {
  using U8 = typename S::U8;
  const U8 nibble = S::set1_u8(0x0f);
  const U8 pair = S::set1_u8(0x30);
  const U8 less = S::set1_u8(offset);
  const U8 first = S::load_u8(packed);
  const U8 second = S::load_u8(packed + kVector);
  const U8 pairs = S::load_u8(packed + 2 * kVector);
  const auto put = [&](int v, U8 upper, U8 lower) __attribute__((always_inline)) {
    const U8 six = S::and_or(upper, pair, S::and_u8(lower, nibble));
    S::store_u8(steps + v * kVector, S::sub_u8(six, less));
  };
  put(0, S::template sll<4>(pairs), first);
  put(1, S::template sll<2>(pairs), second);
  put(2, pairs, S::template srl<4>(first));
  put(3, S::template srl<2>(pairs), S::template srl<4>(second));
}

// Where a walker unpacks the steps of its group, all at once: two operations a run. A variable of
// its own, so that its taken address does not keep the walker out of registers.
template <Scaling K>
struct alignas(kVector) StepBuffer {
  static constexpr bool kUsed =
      K == Scaling::kTwoLevel || K == Scaling::kSixBit16 || K == Scaling::kSixBit32;
  uint8_t steps[kUsed ? kSteps : 1];
};

// What the runs of a group share where scales have two levels.
template <class S, Scaling K>
struct GroupScales {
  typename S::F32 d, dmin;
  typename S::I32 pairs;  // kSixBit32: the upper bits of the next run's steps are bits 16 and 17
  const uint8_t* next;    // the next run's steps

  FEWBIT_INLINE void read(GroupScales& g, const uint8_t* head, uint8_t* unpacked) {
    g.d = S::load_f16(head);
    g.next = head + steps_offset(K);
    if constexpr (K == Scaling::kTwoLevel) g.dmin = S::neg(S::load_f16(head + 32));
    if constexpr (K == Scaling::kTwoLevel16) g.dmin = S::load_f16(head + 32);
    if constexpr (K == Scaling::kTwoLevel) unpack_six_bit_steps<S>(g.next, 0, unpacked);
    if constexpr (K == Scaling::kSixBit16) unpack_six_bit_steps<S>(g.next, 32, unpacked);
    if constexpr (K == Scaling::kSixBit32) {
      g.pairs = S::bits(S::load_bf16(g.next));  // 16 bits, in the upper half of each lane
      const typename S::U8 nibble = S::set1_u8(0x0f);
      const typename S::U8 both = S::load_u8(g.next + 32);
      S::store_u8(unpacked, S::and_u8(both, nibble));
      S::store_u8(unpacked + kVector, S::and_u8(S::template srl<4>(both), nibble));
    }
    if constexpr (StepBuffer<K>::kUsed) g.next = unpacked;
  }

  FEWBIT_INLINE void step(GroupScales& g, RunScales<S, K>& run) {
    const auto times = [](typename S::F32 d, typename S::I32 step)
                           __attribute__((always_inline)) { return S::mul(d, S::convert(step)); };
    if constexpr (K == Scaling::kTwoLevel) {
      run.scale[0] = times(g.d, S::load_u8_i32(g.next));
      run.minimum[0] = times(g.dmin, S::load_u8_i32(g.next + 16));
    } else if constexpr (K == Scaling::kTwoLevel16) {
      const typename S::I32 nibble = S::set1(0x0f);
      const typename S::I32 first = S::load_u8_i32(g.next);
      const typename S::I32 second = S::load_u8_i32(g.next + 16);
      run.scale[0] = times(g.d, S::bit_and(first, nibble));
      run.scale[1] = times(g.d, S::bit_and(second, nibble));
      run.minimum[0] = times(g.dmin, S::template shift_right<4>(first));
      run.minimum[1] = times(g.dmin, S::template shift_right<4>(second));
    } else if constexpr (K == Scaling::kSixBit32) {
      const typename S::I32 upper = S::bit_and(S::template shift_right<12>(g.pairs), S::set1(0x30));
      const typename S::I32 six = S::bit_or(upper, S::load_u8_i32(g.next));
      run.scale[0] = times(g.d, S::sub(six, S::set1(32)));
      g.pairs = S::template shift_right<2>(g.pairs);
    } else {
      run.scale[0] = times(g.d, S::load_i8_i32(g.next));
      run.scale[1] = times(g.d, S::load_i8_i32(g.next + 16));
    }
    g.next += K == Scaling::kSixBit32 ? kRunSteps / 2 : kRunSteps;
  }
};

// 2^(e - 128), subnormal for e < 2.
template <class S>
FEWBIT_INLINE typename S::F32 power_of_two(typename S::I32 e) {
  const typename S::I32 one = S::set1(1);
  const typename S::I32 subnormal = S::template shift_left<21>(S::add(e, one));
  const typename S::I32 normal = S::template shift_left<23>(S::sub(e, one));
  return S::from_bits(S::select(S::less_i32(e, S::set1(2)), subnormal, normal));
}

// Where a run's scales are its group's.
template <class S, Scaling K>
FEWBIT_INLINE void read_scales(RunScales<S, K>& run, const uint8_t* head) {
  if constexpr (K == Scaling::kExponent) {
    run.scale[0] = power_of_two<S>(S::load_u8_i32(head));
  } else {
    run.scale[0] = S::load_f16(head);
  }
  if constexpr (K == Scaling::kHigh) run.scale[0] = S::mul(run.scale[0], S::set1(16.0f));
  if constexpr (K == Scaling::kMinimum) run.minimum[0] = S::load_f16(head + 32);
  if constexpr (K == Scaling::kAsymmetric) run.zero = S::load_u8_i32(head + 32);
}

// Walks the runs of a tile.
template <class S, Codes C, Scaling K>
struct Walker {
  const uint8_t* next;
  const uint8_t* lower;
  uint8_t* unpacked;
  int64_t runs_in_group;
  int64_t left;
  RunScales<S, K> scales;
  GroupScales<S, K> group;

  FEWBIT_INLINE Walker start(const PackedMatrix& w, int64_t tile, StepBuffer<K>& buffer) {
    Walker walker;
    walker.next = w.data + static_cast<size_t>(tile) * w.tile_bytes;
    walker.lower = C == Codes::kNested8 ? low_tile(w, tile) : nullptr;
    walker.unpacked = buffer.steps;
    walker.runs_in_group = w.group / kGroup;
    walker.left = 0;
    return walker;
  }

  // Reads the next run's scales and returns its codes.
  FEWBIT_INLINE RunCodes step(Walker& walker) {
    if (walker.left == 0) {
      if constexpr (steps_bytes(K) > 0) {
        GroupScales<S, K>::read(walker.group, walker.next, walker.unpacked);
        for (size_t line = 0; line < head_bytes(K); line += kVector) {
          prefetch_weights<S>(walker.next + line);
        }
      } else {
        read_scales<S, K>(walker.scales, walker.next);
      }
      walker.next += head_bytes(K);
      walker.left = walker.runs_in_group;
    }
    if constexpr (steps_bytes(K) > 0) GroupScales<S, K>::step(walker.group, walker.scales);
    const RunCodes codes{walker.next, walker.lower};
    walker.next += code_bytes(C);
    if constexpr (C == Codes::kNested8) walker.lower += low_bytes(C);
    --walker.left;
    return codes;
  }
};

// Asks for what lies where V quarters of a run's codes are, some runs ahead.
template <class S, Codes C>
FEWBIT_INLINE void prefetch_codes(const RunCodes& codes, size_t begin, size_t end) {
  constexpr size_t kLines = code_bytes(C) / kVector;
  for (size_t line = kLines * begin / 4; line < kLines * end / 4; ++line) {
    prefetch_weights<S>(codes.at + kVector * line);
    if constexpr (C == Codes::kNested8) prefetch_weights<S>(codes.lower + kVector * line);
  }
}

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
