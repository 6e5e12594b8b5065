// From the bytes of a stored tensor to a packed matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "linear/arena.h"
#include "linear/linear.h"

namespace fewbit {

enum class Source : uint8_t {
  kAffine,  // dense codes of `bits` bits, lowest bit first; fp16 scales, u8 zero points
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kF32,
  kF16,
  kBf16,
  kFp8E4m3,  // float32 scales
};

// How symmetric codes of 8 bits are packed: as they are, or as kNested8.
enum class PackedAs : uint8_t { kPlain, kNested };

// Inputs and bytes of a stored block; affine codes have none (0 bytes).
constexpr int64_t block_size(Source source) {
  switch (source) {
    case Source::kF32:
    case Source::kF16:
    case Source::kBf16:
    case Source::kFp8E4m3:
      return 1;
    case Source::kQ2_K:
    case Source::kQ3_K:
    case Source::kQ4_K:
    case Source::kQ5_K:
    case Source::kQ6_K:
    case Source::kIq4Xs:
      return 256;
    default:
      return kGroup;
  }
}

constexpr size_t block_bytes(Source source) {
  switch (source) {
    case Source::kAffine:
      return 0;
    case Source::kQ4_0:
    case Source::kIq4Nl:
      return 18;
    case Source::kQ4_1:
      return 20;
    case Source::kQ5_0:
      return 22;
    case Source::kQ5_1:
      return 24;
    case Source::kQ8_0:
      return 34;
    case Source::kQ2_K:
      return 84;
    case Source::kQ3_K:
      return 110;
    case Source::kQ4_K:
      return 144;
    case Source::kQ5_K:
      return 176;
    case Source::kQ6_K:
      return 210;
    case Source::kIq4Xs:
      return 136;
    case Source::kMxfp4:
      return 17;
    case Source::kF32:
      return 4;
    case Source::kFp8E4m3:
      return 1;
    default:
      return 2;
  }
}

// A tensor as a checkpoint stores it. The caller has checked that the pointers hold what the sizes
// say. `scales`, `zeros` and `bits` are read for kAffine only: element (row, group) is at
// row * scale_stride + group, the stride 0 where all rows share their scales; kFp8E4m3 has float32
// `scales` so, with one group. Affine codes are stored with 2^(bits-1) added where `zeros` is null
// (symmetric).
struct StoredMatrix {
  Source source;
  int64_t rows;
  int64_t columns;
  const uint8_t* bytes;
  size_t row_bytes;
  int bits = 0;
  int64_t group = 0;
  const void* scales = nullptr;
  const uint8_t* zeros = nullptr;
  int64_t scale_stride = 0;
};

struct OwnedMatrix {
  std::shared_ptr<uint8_t> memory;
  PackedMatrix matrix;
};

// Bytes of the packed form of a matrix; `bits`, `group` and `asymmetric` are read for kAffine only.
size_t packed_bytes(Source source, int64_t rows, int64_t columns, int bits, int64_t group,
                    bool asymmetric, PackedAs form);

// The packed form of a matrix without its bytes: `data` is null. Throws std::invalid_argument for a
// shape that cannot be packed.
PackedMatrix packed_shape(Source source, int64_t rows, int64_t columns, int bits, int64_t group,
                          bool asymmetric, PackedAs form);

// Packs into memory of `arena`, on `threads` threads; every code and scale keeps its value. Throws
// std::invalid_argument for a shape that cannot be packed.
OwnedMatrix repack(const StoredMatrix& stored, PackedAs form, PackedArena& arena, int threads);

// The first rows of the matrix of 4 bits (kHigh) that a matrix of kNested8 begins with; the memory
// is shared. Throws std::invalid_argument for another matrix, or more rows than it has.
OwnedMatrix upper_half(const OwnedMatrix& nested, int64_t rows);

}  // namespace fewbit
