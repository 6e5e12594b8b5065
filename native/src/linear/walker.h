// A tile's runs one after another: the bytes that layout.h describes as codes and scales in lanes,
// for the kernels of linear layers (kernels.h, weight_only.h, kernels_amx.cpp).
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

}  // namespace fewbit
