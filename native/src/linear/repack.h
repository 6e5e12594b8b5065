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
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF32,
  kF16,
  kBf16,
};

// A tensor as a checkpoint stores it. The caller has checked that the pointers hold what the sizes
// say. `scales`, `zeros` and `bits` are read for kAffine only: element (row, group) is at
// row * scale_stride + group, the stride 0 where all rows share their scales. Affine codes are
// stored with 2^(bits-1) added where `zeros` is null (symmetric).
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
                    bool asymmetric);

// Packs into memory of `arena`, on `threads` threads. 2- and 3-bit codes become 4-bit ones and
// 7-bit codes 8-bit ones, with the same values. Throws std::invalid_argument for a shape that
// cannot be packed.
OwnedMatrix repack(const StoredMatrix& stored, PackedArena& arena, int threads);

}  // namespace fewbit
