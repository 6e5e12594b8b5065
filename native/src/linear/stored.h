// How checkpoints store the codes and scales of a row, and how they are taken out: 8 codes at a
// time, as the bytes of a 64-bit word. The layouts are those of ggml's quants; formats/ decodes the
// same in NumPy.
#pragma once

#include <cstring>

#include "linear/layout.h"
#include "linear/repack.h"

namespace fewbit {

// The codes of 32 inputs, 8 a word, the first in the lowest byte.
struct RunWords {
  uint64_t word[4];
};

constexpr uint64_t in_each_byte(unsigned byte) { return byte * uint64_t{0x0101010101010101}; }

inline uint64_t load_word(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// Element i is in the low nibble of byte i, element 16 + i in its high one.
inline RunWords nibble_halves(const uint8_t* packed) {
  const uint64_t nibble = in_each_byte(0x0f);
  const uint64_t first = load_word(packed), second = load_word(packed + 8);
  return {{first & nibble, second & nibble, (first >> 4) & nibble, (second >> 4) & nibble}};
}

// Element i is `mask` of byte i, moved down by `shift`.
inline RunWords shifted(const uint8_t* packed, int shift, unsigned mask) {
  const uint64_t each = in_each_byte(mask);
  return {{(load_word(packed) >> shift) & each, (load_word(packed + 8) >> shift) & each,
           (load_word(packed + 16) >> shift) & each, (load_word(packed + 24) >> shift) & each}};
}

inline RunWords with_upper(const RunWords& low, const RunWords& high, int bit) {
  RunWords joined;
  for (int i = 0; i < 4; ++i) joined.word[i] = low.word[i] | (high.word[i] << bit);
  return joined;
}

// Element i is bit i of 32.
inline RunWords spread_bits(const uint8_t* packed) {
  RunWords bits;
  for (int i = 0; i < 4; ++i) {
    const uint64_t one_each = (packed[i] * in_each_byte(1)) & 0x8040201008040201u;
    bits.word[i] = ((one_each + in_each_byte(0x7f)) >> 7) & in_each_byte(1);
  }
  return bits;
}

// 8 dense codes, the first in the lowest bits, above which may be anything: halved three times.
template <int kBits>
uint64_t spread_codes(uint64_t x) {
  if constexpr (kBits == 8) return x;
  constexpr uint64_t kFours = (uint64_t{1} << (4 * kBits % 64)) - 1;
  constexpr uint64_t kTwos = ((uint64_t{1} << (2 * kBits)) - 1) * 0x0000000100000001u;
  constexpr uint64_t kOnes = ((uint64_t{1} << kBits) - 1) * 0x0001000100010001u;
  x = (x & kFours) | (((x >> (4 * kBits)) & kFours) << 32);
  x = (x & kTwos) | (((x >> (2 * kBits)) & kTwos) << 16);
  return (x & kOnes) | (((x >> kBits) & kOnes) << 8);
}

// Words of 8 bytes are read, the last ones from further down so that none ends behind the run.
template <int kBits>
RunWords dense_codes(const uint8_t* packed) {
  RunWords codes;
  for (int i = 0; i < 4; ++i) {
    const int begin = kBits * i, last = 4 * kBits - 8;
    const int at = begin < last ? begin : last;
    codes.word[i] = spread_codes<kBits>(load_word(packed + at) >> (8 * (begin - at)));
  }
  return codes;
}

// The codes of a run of a row; those of affine sources have the bits of kCodes.
template <Source kSource, Codes kCodes>
RunWords codes_of_run(const uint8_t* row, int64_t run) {
  const uint8_t* block = row + static_cast<size_t>(run) * block_bytes(kSource);
  const uint8_t* super = row + static_cast<size_t>(run / 8) * block_bytes(kSource);
  const int k = static_cast<int>(run % 8);
  switch (kSource) {
    case Source::kQ4_0:
    case Source::kIq4Nl:
      return nibble_halves(block + 2);
    case Source::kQ4_1:
      return nibble_halves(block + 4);
    case Source::kMxfp4:
      return nibble_halves(block + 1);
    case Source::kQ5_0:
      return with_upper(nibble_halves(block + 6), spread_bits(block + 2), 4);
    case Source::kQ5_1:
      return with_upper(nibble_halves(block + 8), spread_bits(block + 4), 4);
    case Source::kQ8_0: {
      RunWords codes = shifted(block + 2, 0, 0xff);
      for (uint64_t& word : codes.word) word ^= in_each_byte(0x80);
      return codes;
    }
    case Source::kQ2_K:  // bit pair k % 4 of 32 bytes for each half of the block
      return shifted(super + 16 + 32 * (k / 4), 2 * (k % 4), 3);
    case Source::kQ3_K:  // the same; bit k of 32 others is the third
      return with_upper(shifted(super + 32 + 32 * (k / 4), 2 * (k % 4), 3), shifted(super, k, 1),
                        2);
    case Source::kQ4_K:  // 32 bytes hold two runs, the even one in the low nibbles
      return shifted(super + 16 + 32 * (k / 2), 4 * (k % 2), 0x0f);
    case Source::kQ5_K:
      return with_upper(shifted(super + 48 + 32 * (k / 2), 4 * (k % 2), 0x0f),
                        shifted(super + 16, k, 1), 4);
    case Source::kQ6_K:  // of each half: 64 bytes of nibbles, runs 2 and 3 in the high ones
      return with_upper(shifted(super + 64 * (k / 4) + 32 * (k % 2), k % 4 >= 2 ? 4 : 0, 0x0f),
                        shifted(super + 128 + 32 * (k / 4), 2 * (k % 4), 3), 4);
    case Source::kIq4Xs:
      return nibble_halves(super + 8 + 16 * k);
    default:
      return dense_codes<bits_of(kCodes)>(row + static_cast<size_t>(run) * 4 * bits_of(kCodes));
  }
}

// Where in a block its scale d is; what goes with it (m, dmin) follows.
constexpr size_t scale_offset(Source source) {
  switch (source) {
    case Source::kQ2_K:
      return 80;
    case Source::kQ3_K:
      return 108;
    case Source::kQ6_K:
      return 208;
    default:
      return 0;
  }
}

// The steps of one row's block, each to where layout.h numbers it.
inline void steps_of_q4_k(const uint8_t* block, int lane, uint8_t* steps) {
  // Bytes 0-3 and 4-7 hold the scales and minima of runs 0-3; bytes 8-11 the low nibbles of runs
  // 4-7, whose upper bits are the top of bytes 0-7.
  const uint8_t* packed = block + 4;
  for (int k = 0; k < 4; ++k) {
    uint8_t* early = steps + kRunSteps * k + lane;
    uint8_t* late = early + kRunSteps * 4;
    early[0] = packed[k] & 63;
    early[16] = packed[k + 4] & 63;
    late[0] = static_cast<uint8_t>((packed[k + 8] & 0x0f) | ((packed[k] >> 2) & 0x30));
    late[16] = static_cast<uint8_t>((packed[k + 8] >> 4) | ((packed[k + 4] >> 2) & 0x30));
  }
}

inline void steps_of_q3_k(const uint8_t* block, int lane, uint8_t* steps) {
  // Bytes 0-7 hold the low nibbles of steps 0-7 (low) and 8-15 (high); bit pair p of byte 8 + i
  // has the upper two bits of step 4 p + i.
  const uint8_t* packed = block + 96;
  for (int i = 0; i < 16; ++i) {
    const int nibble = (packed[i % 8] >> (i < 8 ? 0 : 4)) & 0x0f;
    const int pair = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
    steps[16 * i + lane] = static_cast<uint8_t>(nibble | (pair << 4));
  }
}

template <Source kSource>
void steps_of_block(const uint8_t* block, int lane, uint8_t* steps) {
  if constexpr (kSource == Source::kQ4_K || kSource == Source::kQ5_K) {
    steps_of_q4_k(block, lane, steps);
  } else if constexpr (kSource == Source::kQ3_K) {
    steps_of_q3_k(block, lane, steps);
  } else {  // bytes: those of Q2_K come first, those of Q6_K just before d
    const uint8_t* bytes = block + (kSource == Source::kQ6_K ? 192 : 0);
    for (int i = 0; i < 16; ++i) steps[16 * i + lane] = bytes[i];
  }
}

}  // namespace fewbit
