// The bytes of a packed matrix.
//
// Integer codes. A tile is 16 output rows; along the inputs it is a sequence of weight groups:
//
//   tile  = group, group, ...            (columns / PackedMatrix::group of them)
//   group = head, run, run, ...          (group / 32 of them)
//   run   = run head, codes of 32 inputs
//
//   scaling        head                              run head
//   kSymmetric     16 s (fp16)                       -
//   kAsymmetric    16 s, 16 z (u8)                   -
//   kMinimum       16 d, 16 m (fp16)                 -
//   kTwoLevel      16 d, 16 dmin; group is 256       16 sc, 16 mn (u8)
//   kSigned16      16 d; group is 256                16 sc (i8) of inputs 0..15, 16 of 16..31
//
// The 6-bit scales of Q4_K and Q5_K take a byte each here: 148 and 180 bytes for the 144 and 176
// of a GGUF block of 256 (2.8% and 2.3% more). All others take what the source takes.
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

inline constexpr int kVector = 64;
inline constexpr int kQuads = 8;

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

constexpr size_t head_bytes(Scaling scaling) {
  switch (scaling) {
    case Scaling::kSymmetric:
    case Scaling::kSigned16:
      return 32;
    case Scaling::kAsymmetric:
      return 48;
    case Scaling::kMinimum:
    case Scaling::kTwoLevel:
      return 64;
    default:
      return 0;
  }
}

constexpr size_t run_head_bytes(Scaling scaling) {
  return scaling == Scaling::kTwoLevel || scaling == Scaling::kSigned16 ? 32 : 0;
}

constexpr size_t run_bytes(Codes codes, Scaling scaling) {
  return run_head_bytes(scaling) + code_bytes(codes);
}

constexpr size_t group_bytes(Codes codes, Scaling scaling, int64_t group) {
  return head_bytes(scaling) + static_cast<size_t>(group / kGroup) * run_bytes(codes, scaling);
}

constexpr size_t tile_bytes(Codes codes, Scaling scaling, int64_t columns, int64_t group) {
  if (scaling == Scaling::kNone) return static_cast<size_t>(columns) * code_bytes(codes);
  return static_cast<size_t>(columns / group) * group_bytes(codes, scaling, group);
}

constexpr int bits_of(Codes codes) {
  return codes == Codes::kBits4 ? 4 : codes == Codes::kBits5 ? 5 : codes == Codes::kBits6 ? 6 : 8;
}

}  // namespace fewbit
