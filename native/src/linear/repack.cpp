#include "linear/repack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "linear/layout.h"

namespace fewbit {

namespace {

// --- what a source becomes -----------------------------------------------------------------------

struct Target {
  Codes codes;
  Scaling scaling;
};

Codes affine_codes(int bits) {
  if (bits <= 4) return Codes::kBits4;
  if (bits == 5) return Codes::kBits5;
  return bits == 6 ? Codes::kBits6 : Codes::kBits8;
}

Target target_of(Source source, int bits, bool asymmetric) {
  switch (source) {
    case Source::kAffine:
      return {affine_codes(bits), asymmetric ? Scaling::kAsymmetric : Scaling::kSymmetric};
    case Source::kQ4_0:
      return {Codes::kBits4, Scaling::kSymmetric};
    case Source::kQ4_1:
      return {Codes::kBits4, Scaling::kMinimum};
    case Source::kQ5_0:
      return {Codes::kBits5, Scaling::kSymmetric};
    case Source::kQ5_1:
      return {Codes::kBits5, Scaling::kMinimum};
    case Source::kQ8_0:
      return {Codes::kBits8, Scaling::kSymmetric};
    case Source::kQ4_K:
      return {Codes::kBits4, Scaling::kTwoLevel};
    case Source::kQ5_K:
      return {Codes::kBits5, Scaling::kTwoLevel};
    case Source::kQ6_K:
      return {Codes::kBits6, Scaling::kSigned16};
    case Source::kF32:
      return {Codes::kF32, Scaling::kNone};
    case Source::kF16:
      return {Codes::kF16, Scaling::kNone};
    default:
      return {Codes::kBf16, Scaling::kNone};
  }
}

int64_t group_of(Source source, int64_t affine_group) {
  switch (source) {
    case Source::kAffine:
      return affine_group;
    case Source::kQ4_K:
    case Source::kQ5_K:
    case Source::kQ6_K:
      return kSuper;
    case Source::kF32:
    case Source::kF16:
    case Source::kBf16:
      return 1;
    default:
      return kGroup;
  }
}

// Bytes of a stored block of a weight group; affine and float sources have none.
size_t block_bytes(Source source) {
  switch (source) {
    case Source::kQ4_0:
      return 18;
    case Source::kQ4_1:
      return 20;
    case Source::kQ5_0:
      return 22;
    case Source::kQ5_1:
      return 24;
    case Source::kQ8_0:
      return 34;
    case Source::kQ4_K:
      return 144;
    case Source::kQ5_K:
      return 176;
    case Source::kQ6_K:
      return 210;
    default:
      return 0;
  }
}

// --- codes of one run of one row, as unsigned bytes ----------------------------------------------

void unpack_nibbles(const uint8_t* packed, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = packed[i] & 0x0f;
    out[16 + i] = packed[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* packed, uint8_t* out) {
  uint32_t bits;
  std::memcpy(&bits, packed, 4);
  for (int i = 0; i < 32; ++i) out[i] |= static_cast<uint8_t>(((bits >> i) & 1u) << 4);
}

// Q4_K and Q5_K: 32 bytes hold two runs, the even one in the low nibbles.
void unpack_super_nibbles(const uint8_t* nibbles, int64_t run, uint8_t* out) {
  const uint8_t* pair = nibbles + 32 * (run / 2);
  const int shift = 4 * static_cast<int>(run % 2);
  for (int i = 0; i < 32; ++i) out[i] = (pair[i] >> shift) & 0x0f;
}

// Q6_K: each half of 128 inputs has 64 bytes of nibbles (runs 0 and 1 low, 2 and 3 high) and 32
// bytes of bit pairs, pair k of byte i for input i of run k.
void unpack_q6k(const uint8_t* block, int64_t run, uint8_t* out) {
  const uint8_t* nibbles = block + 64 * (run / 4) + 32 * (run % 2);
  const uint8_t* pairs = block + 128 + 32 * (run / 4);
  const int nibble_shift = run % 4 >= 2 ? 4 : 0;
  const int pair_shift = 2 * static_cast<int>(run % 4);
  for (int i = 0; i < 32; ++i) {
    const int low = (nibbles[i] >> nibble_shift) & 0x0f;
    const int high = (pairs[i] >> pair_shift) & 3;
    out[i] = static_cast<uint8_t>(low | (high << 4));
  }
}

// Dense codes; `offset` moves symmetric codes of fewer bits to the centre of the kernel's.
void unpack_affine(const uint8_t* packed, int bits, int offset, uint8_t* out) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (int i = 0; i < 32; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, packed + bits * (i / 8), static_cast<size_t>(bits));
    for (int k = 0; k < 8; ++k) {
      out[i + k] = static_cast<uint8_t>(((word >> (bits * k)) & mask) + offset);
    }
  }
}

void unpack_run(const StoredMatrix& m, const uint8_t* row, int64_t run, uint8_t* out) {
  const uint8_t* block = row + static_cast<size_t>(run) * block_bytes(m.source);
  const uint8_t* super = row + static_cast<size_t>(run / 8) * block_bytes(m.source);
  switch (m.source) {
    case Source::kQ4_0:
      return unpack_nibbles(block + 2, out);
    case Source::kQ4_1:
      return unpack_nibbles(block + 4, out);
    case Source::kQ5_0:
      unpack_nibbles(block + 6, out);
      return add_fifth_bits(block + 2, out);
    case Source::kQ5_1:
      unpack_nibbles(block + 8, out);
      return add_fifth_bits(block + 4, out);
    case Source::kQ8_0:
      for (int i = 0; i < 32; ++i) out[i] = block[2 + i] ^ 0x80;
      return;
    case Source::kQ4_K:
      return unpack_super_nibbles(super + 16, run % 8, out);
    case Source::kQ5_K:
      unpack_super_nibbles(super + 48, run % 8, out);
      for (int i = 0; i < 32; ++i) out[i] |= ((super[16 + i] >> (run % 8)) & 1) << 4;
      return;
    case Source::kQ6_K:
      return unpack_q6k(super, run % 8, out);
    default: {
      const int centre = 1 << (bits_of(affine_codes(m.bits)) - 1);
      const int offset = m.zeros ? 0 : centre - (1 << (m.bits - 1));
      return unpack_affine(row + static_cast<size_t>(run) * 4 * m.bits, m.bits, offset, out);
    }
  }
}

// --- scales --------------------------------------------------------------------------------------

void put_u16(uint8_t* head, int lane, const uint8_t* value) {
  std::memcpy(head + 2 * lane, value, 2);
}

void write_head(const StoredMatrix& m, int64_t row, int64_t group, int lane, uint8_t* head) {
  const uint8_t* block = m.bytes + static_cast<size_t>(row) * m.row_bytes +
                         static_cast<size_t>(group) * block_bytes(m.source);
  switch (m.source) {
    case Source::kAffine: {
      const auto at = static_cast<size_t>(row * m.scale_stride + group);
      put_u16(head, lane, static_cast<const uint8_t*>(m.scales) + 2 * at);
      if (m.zeros) head[32 + lane] = m.zeros[at];
      return;
    }
    case Source::kQ4_0:
    case Source::kQ5_0:
    case Source::kQ8_0:
      return put_u16(head, lane, block);
    case Source::kQ6_K:
      return put_u16(head, lane, block + 208);
    default:
      put_u16(head, lane, block);
      return put_u16(head + 32, lane, block + 2);
  }
}

// The steps of one row in one group, to where layout.h numbers them: 32 k + lane and 16 further.
void gather_steps(const StoredMatrix& m, int64_t row, int64_t group, int lane, uint8_t* steps) {
  const uint8_t* block = m.bytes + static_cast<size_t>(row) * m.row_bytes +
                         static_cast<size_t>(group) * block_bytes(m.source);
  if (m.source == Source::kQ6_K) {
    for (int i = 0; i < 16; ++i) steps[16 * i + lane] = block[192 + i];
    return;
  }
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

void write_six_bit_steps(const uint8_t* steps, uint8_t* out) {
  for (int b = 0; b < kVector; ++b) {
    const uint8_t v[4] = {steps[b], steps[kVector + b], steps[2 * kVector + b],
                          steps[3 * kVector + b]};
    out[b] = static_cast<uint8_t>((v[0] & 0x0f) | (v[2] << 4));
    out[kVector + b] = static_cast<uint8_t>((v[1] & 0x0f) | (v[3] << 4));
    out[2 * kVector + b] = static_cast<uint8_t>((v[0] >> 4) | ((v[1] >> 4) << 2) |
                                                ((v[2] >> 4) << 4) | ((v[3] >> 4) << 6));
  }
}

void write_steps(const StoredMatrix& m, const Target& t, int64_t first, int lanes, int64_t group,
                 uint8_t* head) {
  uint8_t steps[kSteps] = {};
  for (int r = 0; r < lanes; ++r) gather_steps(m, first + r, group, r, steps);
  uint8_t* out = head + steps_offset(t.scaling);
  if (t.scaling == Scaling::kTwoLevel) return write_six_bit_steps(steps, out);
  std::memcpy(out, steps, kSteps);
}

// --- vectors -------------------------------------------------------------------------------------

using RunCodes = uint8_t[kTileRows][kGroup];

uint32_t quad(const RunCodes& codes, int row, int j) {
  uint32_t word;
  std::memcpy(&word, codes[row] + 4 * j, 4);
  return word;
}

void put_u32(uint8_t* vectors, int vector, int lane, uint32_t word) {
  std::memcpy(vectors + kVector * vector + 4 * lane, &word, 4);
}

void write_codes(const RunCodes& codes, Codes kind, uint8_t* out) {
  for (int r = 0; r < kTileRows; ++r) {
    if (kind == Codes::kBits8) {
      for (int j = 0; j < kQuads; ++j) put_u32(out, j, r, quad(codes, r, j));
      continue;
    }
    for (int v = 0; v < 4; ++v) {
      const uint32_t low = quad(codes, r, v) & 0x0f0f0f0fu;
      const uint32_t high = quad(codes, r, v + 4) & 0x0f0f0f0fu;
      put_u32(out, v, r, low | (high << 4));
    }
    if (kind == Codes::kBits5) {
      uint32_t fifth = 0;
      for (int j = 0; j < kQuads; ++j) fifth |= ((quad(codes, r, j) >> 4) & 0x01010101u) << j;
      put_u32(out, 4, r, fifth);
    }
    if (kind == Codes::kBits6) {
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs = 0;
        for (int j = 0; j < 4; ++j) {
          pairs |= ((quad(codes, r, 4 * half + j) >> 4) & 0x03030303u) << (2 * j);
        }
        put_u32(out, 4 + half, r, pairs);
      }
    }
  }
}

// --- tiles ---------------------------------------------------------------------------------------

void pack_run(const StoredMatrix& m, const Target& t, int64_t first, int lanes, int64_t run,
              uint8_t* out) {
  RunCodes codes = {};
  for (int r = 0; r < lanes; ++r) {
    unpack_run(m, m.bytes + static_cast<size_t>(first + r) * m.row_bytes, run, codes[r]);
  }
  write_codes(codes, t.codes, out);
}

void pack_integer_tile(const StoredMatrix& m, const Target& t, int64_t group, int64_t tile,
                       uint8_t* out) {
  const int64_t first = tile * kTileRows;
  const int lanes = static_cast<int>(std::min<int64_t>(kTileRows, m.rows - first));
  if (lanes < kTileRows) std::memset(out, 0, tile_bytes(t.codes, t.scaling, m.columns, group));
  const int64_t runs = group / kGroup;
  for (int64_t g = 0; g < m.columns / group; ++g) {
    for (int r = 0; r < lanes; ++r) write_head(m, first + r, g, r, out);
    if (steps_bytes(t.scaling) > 0) write_steps(m, t, first, lanes, g, out);
    out += head_bytes(t.scaling);
    for (int64_t run = g * runs; run < (g + 1) * runs; ++run) {
      pack_run(m, t, first, lanes, run, out);
      out += code_bytes(t.codes);
    }
  }
}

template <size_t kWidth>
void pack_float_tile(const StoredMatrix& m, int64_t tile, uint8_t* out) {
  const int64_t first = tile * kTileRows;
  const int64_t lanes = std::min<int64_t>(kTileRows, m.rows - first);
  if (lanes < kTileRows) std::memset(out, 0, kWidth * kTileRows * static_cast<size_t>(m.columns));
  for (int64_t r = 0; r < lanes; ++r) {
    const uint8_t* row = m.bytes + static_cast<size_t>(first + r) * m.row_bytes;
    for (int64_t c = 0; c < m.columns; ++c) {
      std::memcpy(out + (c * kTileRows + r) * kWidth, row + c * kWidth, kWidth);
    }
  }
}

void pack_tile(const StoredMatrix& m, const Target& t, int64_t group, int64_t tile, uint8_t* out) {
  if (t.codes == Codes::kF32) return pack_float_tile<4>(m, tile, out);
  if (t.scaling == Scaling::kNone) return pack_float_tile<2>(m, tile, out);
  pack_integer_tile(m, t, group, tile, out);
}

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void check(const StoredMatrix& m, const Target& t, int64_t group) {
  require(m.rows > 0 && m.columns > 0, "a packed matrix has at least one row and one column");
  if (t.scaling == Scaling::kNone) return;
  require(m.source != Source::kAffine || (m.bits >= 2 && m.bits <= 8),
          "affine codes have 2 to 8 bits");
  require(group > 0 && group % kGroup == 0 && m.columns % group == 0,
          std::to_string(m.columns) + " columns do not divide into groups of " +
              std::to_string(group) + " that are multiples of 32");
}

}  // namespace

size_t packed_bytes(Source source, int64_t rows, int64_t columns, int bits, int64_t group,
                    bool asymmetric) {
  const Target t = target_of(source, bits, asymmetric);
  const auto tiles = static_cast<size_t>((rows + kTileRows - 1) / kTileRows);
  return tiles * tile_bytes(t.codes, t.scaling, columns, group_of(source, group));
}

OwnedMatrix repack(const StoredMatrix& stored, PackedArena& arena, int threads) {
  const Target t = target_of(stored.source, stored.bits, stored.zeros != nullptr);
  const int64_t group = group_of(stored.source, stored.group);
  check(stored, t, group);
  PackedMatrix matrix{t.codes,     t.scaling,
                      stored.rows, stored.columns,
                      group,       tile_bytes(t.codes, t.scaling, stored.columns, group),
                      nullptr};
  OwnedMatrix owned{arena.take(static_cast<size_t>(matrix.tiles()) * matrix.tile_bytes), matrix};
  owned.matrix.data = owned.memory.get();

  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t tile; (tile = next.fetch_add(1)) < matrix.tiles();) {
      pack_tile(stored, t, group, tile,
                owned.memory.get() + static_cast<size_t>(tile) * matrix.tile_bytes);
    }
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads && i < matrix.tiles(); ++i) others.emplace_back(work);
  } catch (const std::exception&) {
    // The system gives no more threads: those that it gave and this one do all of the work.
  }
  work();
  for (auto& other : others) other.join();
  return owned;
}

}  // namespace fewbit
