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
//   kTwoLevel      16 d, 16 dmin, 256 steps of 6 bits           64 + 192    group is 256
//   kSigned16      16 d, 256 steps (i8)                         32 + 256    group is 256
//
// So every byte of the source is here once and nothing else is, and the code vectors of Q4_K and
// Q5_K lie on 64-byte lines (2304 and 2816 bytes a group).
//
// The steps are the scales of the second level, 32 a run: steps 32k .. 32k + 31 are, for the 16
// rows in turn, run k's sc and then its mn (kTwoLevel), or its sc of inputs 0..15 and then
// of 16..31 (kSigned16). 6 bits: of the four vectors of 64 steps, nibble vector v has the lower
// four bits of vector v in its low nibbles and those of vector v + 2 in its high ones; two such
// vectors; then one whose bits 2v and 2v + 1 are the upper two bits of vector v.
//
// The codes of a run are 8 quads of 4 consecutive inputs, quad j = inputs 4j..4j+3, as unsigned
// numbers. A vector is 64 bytes: 32-bit lane r belongs to output row r, its byte b to input b of a
// quad, which is how vpdpbusd and the tiles of AMX want them.
//
//   4 bits   4 vectors; vector v has quad v in its low nibbles and quad v + 4 in its high ones
//   5 bits   the same 4, then one vector whose bit j is the fifth bit of quad j
//   6 bits   the same 4, then two: quad j's upper two bits are bits 2 (j % 4) of vector j / 4
//   8 bits   8 vectors, quad after quad; signed codes are stored with 128 added
//
// Float weights: for each input 16 values, one a row, in the stored type.
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
    case Codes::kBits4:
      return 4 * kVector;
    case Codes::kBits5:
      return 5 * kVector;
    case Codes::kBits6:
      return 6 * kVector;
    case Codes::kBits8:
      return 8 * kVector;
    case Codes::kF32:
      return 64;
    default:
      return 32;
  }
}

// Where the steps begin in a head, and how many bytes they take.
constexpr size_t steps_offset(Scaling scaling) { return scaling == Scaling::kTwoLevel ? 64 : 32; }

constexpr size_t steps_bytes(Scaling scaling) {
  switch (scaling) {
    case Scaling::kTwoLevel:
      return kSteps * 6 / 8;
    case Scaling::kSigned16:
      return kSteps;
    default:
      return 0;
  }
}

constexpr size_t head_bytes(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone:
      return 0;
    case Scaling::kSymmetric:
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
  if (scaling == Scaling::kNone) return static_cast<size_t>(columns) * code_bytes(codes);
  return static_cast<size_t>(columns / group) * group_bytes(codes, scaling, group);
}

constexpr int bits_of(Codes codes) {
  return codes == Codes::kBits4 ? 4 : codes == Codes::kBits5 ? 5 : codes == Codes::kBits6 ? 6 : 8;
}

}  // namespace fewbit
