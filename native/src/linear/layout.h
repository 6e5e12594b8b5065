// The bytes of a packed matrix. They do not depend on the instruction set.
//
// Integer codes. A tile is 16 output rows; along the inputs it is a sequence of weight groups:
//
//   tile  = group, group, ...                (columns / PackedMatrix::group of them)
//   group = head, run, run, ...              (group / 32 of them)
//   run   = codes of 32 inputs
//
//   scaling        head                                         bytes
//   kSymmetric     16 s (fp16)                                  32
//   kAsymmetric    16 s, 16 z (u8)                              48
//   kMinimum       16 d, 16 m (fp16)                            64
//   kExponent      16 e (u8)                                    16
//   kTwoLevel      16 d, 16 dmin, 256 steps of 6 bits           64 + 192    group is 256, as below
//   kTwoLevel16    16 d, 16 dmin, 256 steps of 4 + 4 bits       64 + 256
//   kSigned16      16 d, 256 steps (i8)                         32 + 256
//   kSixBit16      16 d, 256 steps of 6 bits                    32 + 192
//   kSixBit32      16 d, 128 steps of 6 bits                    32 + 96
//
// kHigh has the head of kSymmetric.
//
// So every byte of the source is here once and nothing else is, and the code vectors of Q2_K, Q4_K,
// Q5_K and IQ4_XS lie on 64-byte lines (1344, 2304, 2816 and 2176 bytes a group).
//
// The steps are the scales of the second level, 32 a run: steps 32k .. 32k + 31 are, for the 16
// rows in turn, run k's sc and then its mn (kTwoLevel), or what belongs to its inputs 0..15 and
// then to 16..31: sc (kSigned16, kSixBit16), or sc in the low and mn in the high nibble
// (kTwoLevel16).
//
// 256 steps of 6 bits: of the four vectors of 64 steps, nibble vector v has the lower four bits of
// vector v in its low nibbles and those of vector v + 2 in its high ones; two such vectors; then
// one whose bits 2v and 2v + 1 are the upper two bits of vector v. kSixBit32 has 16 steps a run:
// first a u16 for each row, its bits 2k and 2k + 1 the upper two bits of run k; then one vector
// whose bytes 16 (k % 4) .. + 15 have the lower four bits of run k, in the low nibbles for k < 4.
//
// The codes of a run are 8 quads of 4 consecutive inputs, quad j = inputs 4j..4j+3, as unsigned
// numbers. A vector is 64 bytes: 32-bit lane r belongs to output row r, its byte b to input b of a
// quad, which is how vpdpbusd and the tiles of AMX want them.
//
//   nibbles  4 vectors; vector v has quad v in its low nibbles and quad v + 4 in its high ones
//   pairs    2 vectors; quad j is the two bits from bit 2 (j % 4) of vector j / 4
//   bits     1 vector, whose bit j is quad j
//
//   2 bits   pairs                                 4 bits   nibbles
//   3 bits   pairs, then bits: the third bit       5 bits   nibbles, then bits: the fifth bit
//   6 bits   nibbles, then pairs: the upper two    7 bits   those of 6 bits, then bits: the seventh
//   8 bits   8 vectors, quad after quad; signed codes are stored with 128 added
//   kIq4, kE2m1   nibbles
//   kNested8      nibbles: the upper four of the 8 bits. The lower four are nibbles too, run after
//                 run without heads, and lie behind all tiles, tile after tile. So a matrix of
//                 4 bits (kBits4, kHigh) is at the start of one of kNested8, in one stream.
//
// Float weights: for each input 16 values, one a row, in the stored type; before them, where codes
// are kF8E4m3, the 16 scales (float32).
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

// Changes whenever the bytes do: packed matrices may be kept in files.
inline constexpr int kLayoutVersion = 2;

inline constexpr int kVector = 64;
inline constexpr int kQuads = 8;
inline constexpr int64_t kSuper = 256;  // inputs of a group whose scales have two levels
inline constexpr int kSteps = 256;      // of such a group, all 16 rows
inline constexpr int kRunSteps = 32;

constexpr size_t code_bytes(Codes codes) {  // of a run; of one input for float weights
  switch (codes) {
    case Codes::kBits2:
      return 2 * kVector;
    case Codes::kBits3:
      return 3 * kVector;
    case Codes::kBits4:
    case Codes::kNested8:
    case Codes::kIq4:
    case Codes::kE2m1:
      return 4 * kVector;
    case Codes::kBits5:
      return 5 * kVector;
    case Codes::kBits6:
      return 6 * kVector;
    case Codes::kBits7:
      return 7 * kVector;
    case Codes::kBits8:
      return 8 * kVector;
    case Codes::kF32:
      return 64;
    case Codes::kF8E4m3:
      return 16;
    default:
      return 32;
  }
}

// What lies of a run behind all tiles.
constexpr size_t low_bytes(Codes codes) { return codes == Codes::kNested8 ? 4 * kVector : 0; }

// What stands before the first input of a tile of float weights.
constexpr size_t float_head_bytes(Codes codes) {
  return codes == Codes::kF8E4m3 ? kTileRows * sizeof(float) : 0;
}

// Where the steps begin in a head, and how many bytes they take.
constexpr size_t steps_offset(Scaling scaling) {
  return scaling == Scaling::kTwoLevel || scaling == Scaling::kTwoLevel16 ? 64 : 32;
}

constexpr size_t steps_bytes(Scaling scaling) {
  switch (scaling) {
    case Scaling::kTwoLevel:
    case Scaling::kSixBit16:
      return kSteps * 6 / 8;
    case Scaling::kTwoLevel16:
    case Scaling::kSigned16:
      return kSteps;
    case Scaling::kSixBit32:
      return kSteps / 2 * 6 / 8;
    default:
      return 0;
  }
}

constexpr size_t head_bytes(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone:
      return 0;
    case Scaling::kExponent:
      return 16;
    case Scaling::kSymmetric:
    case Scaling::kHigh:
      return 32;
    case Scaling::kAsymmetric:
      return 48;
    case Scaling::kMinimum:
      return 64;
    default:
      return steps_offset(scaling) + steps_bytes(scaling);
  }
}

constexpr size_t group_bytes(Codes codes, Scaling scaling, int64_t group) {
  return head_bytes(scaling) + static_cast<size_t>(group / kGroup) * code_bytes(codes);
}

constexpr size_t tile_bytes(Codes codes, Scaling scaling, int64_t columns, int64_t group) {
  if (scaling == Scaling::kNone) {
    return float_head_bytes(codes) + static_cast<size_t>(columns) * code_bytes(codes);
  }
  return static_cast<size_t>(columns / group) * group_bytes(codes, scaling, group);
}

// The lower halves of a tile of kNested8, and all bytes of a matrix.
inline const uint8_t* low_tile(const PackedMatrix& w, int64_t tile) {
  const auto runs = static_cast<size_t>(w.columns / kGroup);
  return w.data + static_cast<size_t>(w.tiles()) * w.tile_bytes +
         static_cast<size_t>(tile) * runs * low_bytes(w.codes);
}

inline size_t matrix_bytes(const PackedMatrix& w) {
  const auto runs = static_cast<size_t>(w.columns / kGroup);
  return static_cast<size_t>(w.tiles()) * (w.tile_bytes + runs * low_bytes(w.codes));
}

// Bits of the unsigned number that a code is multiplied as.
constexpr int bits_of(Codes codes) {
  switch (codes) {
    case Codes::kBits2:
      return 2;
    case Codes::kBits3:
      return 3;
    case Codes::kBits4:
      return 4;
    case Codes::kBits5:
    case Codes::kE2m1:
      return 5;
    case Codes::kBits6:
      return 6;
    case Codes::kBits7:
      return 7;
    default:
      return 8;
  }
}

constexpr int centre_of(Codes codes) { return 1 << (bits_of(codes) - 1); }

// Whether scales belong to 16 inputs, so that a run has two.
constexpr bool has_halves(Scaling scaling) {
  return scaling == Scaling::kTwoLevel16 || scaling == Scaling::kSigned16 ||
         scaling == Scaling::kSixBit16;
}

constexpr bool has_minimum(Scaling scaling) {
  return scaling == Scaling::kMinimum || scaling == Scaling::kTwoLevel ||
         scaling == Scaling::kTwoLevel16;
}

constexpr bool is_table(Codes codes) { return codes == Codes::kIq4 || codes == Codes::kE2m1; }

// What a code of kIq4 or kE2m1 stands for, plus its middle (128 or 16). The first are the values of
// ggml's kvalues_iq4nl, the second twice those of OCP MX's E2M1.
inline constexpr uint8_t kIq4Values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                           129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kE2m1Values[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                            16, 15, 14, 13, 12, 10, 8,  4};

constexpr const uint8_t* table_of(Codes codes) {
  return codes == Codes::kIq4 ? kIq4Values : kE2m1Values;
}

}  // namespace fewbit
