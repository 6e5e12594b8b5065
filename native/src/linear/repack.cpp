#include "linear/repack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "linear/layout.h"
#include "linear/spread.h"
#include "linear/stored.h"
#include "linear/target.h"

namespace fewbit {

namespace {

// --- heads ---------------------------------------------------------------------------------------

void put_u16(uint8_t* head, int lane, const uint8_t* value) {
  std::memcpy(head + 2 * lane, value, 2);
}

// The 256 steps of 6 bits as layout.h has them.
void write_six_bit_steps(const uint8_t* steps, uint8_t* out) {
  constexpr uint64_t kNibble = in_each_byte(0x0f), kPair = in_each_byte(3);
  for (int b = 0; b < kVector; b += 8) {
    uint64_t v[4];
    for (int i = 0; i < 4; ++i) v[i] = load_word(steps + kVector * i + b);
    const uint64_t first = (v[0] & kNibble) | ((v[2] & kNibble) << 4);
    const uint64_t second = (v[1] & kNibble) | ((v[3] & kNibble) << 4);
    uint64_t pairs = 0;
    for (int i = 0; i < 4; ++i) pairs |= ((v[i] >> 4) & kPair) << (2 * i);
    std::memcpy(out + b, &first, 8);
    std::memcpy(out + kVector + b, &second, 8);
    std::memcpy(out + 2 * kVector + b, &pairs, 8);
  }
}

// IQ4_XS: the upper bits lie together as they are stored.
void write_iq4_xs_steps(const uint8_t* block, int lane, uint8_t* head) {
  uint8_t* steps = head + steps_offset(Scaling::kSixBit32);
  put_u16(steps, lane, block + 2);
  for (int k = 0; k < 4; ++k) {
    const int shift = 4 * (k % 2);
    const int low = (block[4 + k / 2] >> shift) & 0x0f;
    const int high = (block[6 + k / 2] >> shift) & 0x0f;  // of run k + 4
    steps[32 + 16 * k + lane] = static_cast<uint8_t>(low | (high << 4));
  }
}

// The rows of a tile, and where their blocks of a group begin.
struct TileRows {
  const StoredMatrix& m;
  int64_t first;
  int lanes;

  const uint8_t* row(int lane) const {
    return m.bytes + static_cast<size_t>(first + lane) * m.row_bytes;
  }
};

void write_affine_head(const TileRows& rows, int64_t group, uint8_t* head) {
  const StoredMatrix& m = rows.m;
  for (int r = 0; r < rows.lanes; ++r) {
    const auto at = static_cast<size_t>((rows.first + r) * m.scale_stride + group);
    put_u16(head, r, static_cast<const uint8_t*>(m.scales) + 2 * at);
    if (m.zeros) head[32 + r] = m.zeros[at];
  }
}

template <Source kSource>
void write_head(const TileRows& rows, const Target& t, int64_t group, uint8_t* head) {
  if constexpr (kSource == Source::kAffine) return write_affine_head(rows, group, head);
  uint8_t steps[kSteps] = {};
  for (int r = 0; r < rows.lanes; ++r) {
    const uint8_t* block = rows.row(r) + static_cast<size_t>(group) * block_bytes(kSource);
    if constexpr (kSource == Source::kMxfp4) {
      head[r] = block[0];
      continue;
    }
    put_u16(head, r, block + scale_offset(kSource));
    if (has_minimum(t.scaling)) put_u16(head + 32, r, block + scale_offset(kSource) + 2);
    if constexpr (kSource == Source::kIq4Xs) {
      write_iq4_xs_steps(block, r, head);
    } else if constexpr (block_size(kSource) == kSuper) {
      steps_of_block<kSource>(block, r, steps);
    }
  }
  uint8_t* out = head + steps_offset(t.scaling);
  if (steps_bytes(t.scaling) == kSteps) std::memcpy(out, steps, kSteps);
  if (steps_bytes(t.scaling) == kSteps * 6 / 8) write_six_bit_steps(steps, out);
}

// --- planes of codes -----------------------------------------------------------------------------

uint32_t low_half(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t high_half(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

void put_u32(uint8_t* vectors, int vector, int lane, uint32_t word) {
  std::memcpy(vectors + kVector * vector + 4 * lane, &word, 4);
}

void put_nibbles(const RunWords& c, int lane, uint8_t* out) {
  constexpr uint64_t kNibble = in_each_byte(0x0f);
  for (int i = 0; i < 2; ++i) {
    const uint64_t both = (c.word[i] & kNibble) | ((c.word[i + 2] & kNibble) << 4);
    put_u32(out, 2 * i, lane, low_half(both));
    put_u32(out, 2 * i + 1, lane, high_half(both));
  }
}

// A word has quads 2i and 2i + 1, whose pairs stand next to each other in a vector.
void put_pairs(const RunWords& c, int from, int lane, uint8_t* out) {
  constexpr uint64_t kPair = in_each_byte(3);
  for (int i = 0; i < 2; ++i) {
    const uint64_t even = (c.word[2 * i] >> from) & kPair;
    const uint64_t odd = (c.word[2 * i + 1] >> from) & kPair;
    const uint64_t both = even | (odd << 4);
    put_u32(out, i, lane, low_half(both) | (high_half(both) << 2));
  }
}

void put_bits(const RunWords& c, int from, int lane, uint8_t* out) {
  uint64_t all = 0;
  for (int i = 0; i < 4; ++i) all |= ((c.word[i] >> from) & in_each_byte(1)) << (2 * i);
  put_u32(out, 0, lane, low_half(all) | (high_half(all) << 1));
}

RunWords upper_halves(const RunWords& c) {
  RunWords upper;
  for (int i = 0; i < 4; ++i) upper.word[i] = c.word[i] >> 4;
  return upper;
}

// `lower` is where the lower halves of kNested8 go.
template <Codes kCodes>
void put_codes(const RunWords& c, int lane, uint8_t* out, uint8_t* lower) {
  if constexpr (kCodes == Codes::kNested8) {
    put_nibbles(upper_halves(c), lane, out);
    put_nibbles(c, lane, lower);
  } else if constexpr (kCodes == Codes::kBits8) {
    for (int j = 0; j < kQuads; ++j) {
      put_u32(out, j, lane, j % 2 ? high_half(c.word[j / 2]) : low_half(c.word[j / 2]));
    }
  } else if constexpr (kCodes == Codes::kBits2 || kCodes == Codes::kBits3) {
    put_pairs(c, 0, lane, out);
    if constexpr (kCodes == Codes::kBits3) put_bits(c, 2, lane, out + 2 * kVector);
  } else {
    uint8_t* plane = out + 4 * kVector;
    put_nibbles(c, lane, out);
    if constexpr (kCodes == Codes::kBits5) put_bits(c, 4, lane, plane);
    if constexpr (kCodes == Codes::kBits6 || kCodes == Codes::kBits7) put_pairs(c, 4, lane, plane);
    if constexpr (kCodes == Codes::kBits7) put_bits(c, 6, lane, plane + 2 * kVector);
  }
}

// --- tiles ---------------------------------------------------------------------------------------

// Rows beyond the matrix are zero; a zero exponent would be a subnormal scale, which is slow.
void clear_tile(const Target& t, const StoredMatrix& m, int64_t group, uint8_t* out,
                uint8_t* lower) {
  const size_t bytes = tile_bytes(t.codes, t.scaling, m.columns, group);
  std::memset(out, 0, bytes);
  std::memset(lower, 0, static_cast<size_t>(m.columns / kGroup) * low_bytes(t.codes));
  if (t.scaling != Scaling::kExponent) return;
  for (size_t at = 0; at < bytes; at += group_bytes(t.codes, t.scaling, group)) {
    std::memset(out + at, 128, kTileRows);
  }
}

template <Source kSource, Codes kCodes>
void pack_integer_tile(const TileRows& rows, const Target& t, int64_t group, uint8_t* out,
                       uint8_t* lower) {
  const int64_t runs = group / kGroup;
  for (int64_t g = 0; g < rows.m.columns / group; ++g) {
    write_head<kSource>(rows, t, g, out);
    out += head_bytes(t.scaling);
    for (int64_t run = g * runs; run < (g + 1) * runs; ++run) {
      for (int r = 0; r < rows.lanes; ++r) {
        put_codes<kCodes>(codes_of_run<kSource, kCodes>(rows.row(r), run), r, out, lower);
      }
      out += code_bytes(kCodes);
      lower += low_bytes(kCodes);
    }
  }
}

// Four columns of four rows of 16-bit values, as 64-bit words: word i becomes column i.
void transpose(uint64_t (&w)[4]) {
  constexpr uint64_t kEven = 0x0000ffff0000ffffu, kLow = 0xffffffffu;
  const uint64_t even01 = (w[0] & kEven) | ((w[1] & kEven) << 16);
  const uint64_t odd01 = ((w[0] >> 16) & kEven) | (w[1] & ~kEven);
  const uint64_t even23 = (w[2] & kEven) | ((w[3] & kEven) << 16);
  const uint64_t odd23 = ((w[2] >> 16) & kEven) | (w[3] & ~kEven);
  w[0] = (even01 & kLow) | (even23 << 32);
  w[1] = (odd01 & kLow) | (odd23 << 32);
  w[2] = (even01 >> 32) | (even23 & ~kLow);
  w[3] = (odd01 >> 32) | (odd23 & ~kLow);
}

// Columns [begin, end), a multiple of four, of a whole tile of 16-bit values.
void pack_halves(const TileRows& rows, int64_t begin, int64_t end, uint8_t* out) {
  for (int r = 0; r < kTileRows; r += 4) {
    for (int64_t c = begin; c < end; c += 4) {
      uint64_t w[4];
      for (int i = 0; i < 4; ++i) w[i] = load_word(rows.row(r + i) + 2 * c);
      transpose(w);
      for (int i = 0; i < 4; ++i) std::memcpy(out + 2 * ((c + i) * kTileRows + r), &w[i], 8);
    }
  }
}

template <size_t kWidth>
void pack_columns(const TileRows& rows, int64_t begin, int64_t end, uint8_t* out) {
  for (int r = 0; r < rows.lanes; ++r) {
    const uint8_t* row = rows.row(r);
    for (int64_t c = begin; c < end; ++c) {
      std::memcpy(out + static_cast<size_t>(c * kTileRows + r) * kWidth,
                  row + static_cast<size_t>(c) * kWidth, kWidth);
    }
  }
}

// A block of inputs at a time, so that what is written stays in the nearest cache.
template <size_t kWidth>
void pack_float_tile(const TileRows& rows, uint8_t* out) {
  constexpr int64_t kBlock = 256;
  for (int64_t begin = 0; begin < rows.m.columns; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, rows.m.columns);
    if (kWidth == 2 && rows.lanes == kTileRows && (end - begin) % 4 == 0) {
      pack_halves(rows, begin, end, out);
    } else {
      pack_columns<kWidth>(rows, begin, end, out);
    }
  }
}

void put_row_scales(const TileRows& rows, uint8_t* out) {
  const auto* scales = static_cast<const uint8_t*>(rows.m.scales);
  for (int r = 0; r < rows.lanes; ++r) {
    const auto at = static_cast<size_t>((rows.first + r) * rows.m.scale_stride);
    std::memcpy(out + sizeof(float) * static_cast<size_t>(r), scales + sizeof(float) * at,
                sizeof(float));
  }
}

void pack_tile(const StoredMatrix& m, const Target& t, int64_t group, int64_t tile, uint8_t* out,
               uint8_t* lower) {
  const int64_t first = tile * kTileRows;
  const TileRows rows{m, first, static_cast<int>(std::min<int64_t>(kTileRows, m.rows - first))};
  if (rows.lanes < kTileRows) clear_tile(t, m, group, out, lower);
  if (t.codes == Codes::kF32) return pack_float_tile<4>(rows, out);
  if (t.codes == Codes::kF8E4m3) {
    put_row_scales(rows, out);
    return pack_float_tile<1>(rows, out + float_head_bytes(t.codes));
  }
  if (t.scaling == Scaling::kNone) return pack_float_tile<2>(rows, out);
  with_source(m, [&]<Source kSource, Codes kCodes>() {
    if constexpr (kCodes == Codes::kBits8) {
      if (t.codes == Codes::kNested8) {
        return pack_integer_tile<kSource, Codes::kNested8>(rows, t, group, out, lower);
      }
    }
    pack_integer_tile<kSource, kCodes>(rows, t, group, out, lower);
  });
}

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void check(const PackedMatrix& m, Source source, int bits) {
  require(m.rows > 0 && m.columns > 0, "a packed matrix has at least one row and one column");
  if (m.is_float()) return;
  require(source != Source::kAffine || (bits >= 2 && bits <= 8), "affine codes have 2 to 8 bits");
  const int64_t group = m.group;
  require(group > 0 && group % kGroup == 0 && m.columns % group == 0,
          std::to_string(m.columns) + " columns do not divide into groups of " +
              std::to_string(group) + " that are multiples of 32");
}

}  // namespace

size_t packed_bytes(Source source, int64_t rows, int64_t columns, int bits, int64_t group,
                    bool asymmetric, PackedAs form) {
  const Target t = target_of(source, bits, asymmetric, form);
  const int64_t own_group = group_of(source, group);
  return matrix_bytes({t.codes, t.scaling, rows, columns, own_group,
                       tile_bytes(t.codes, t.scaling, columns, own_group), nullptr});
}

PackedMatrix packed_shape(Source source, int64_t rows, int64_t columns, int bits,
                          int64_t affine_group, bool asymmetric, PackedAs form) {
  require(form == PackedAs::kPlain || has_nested_form(source, bits, asymmetric),
          "only symmetric codes of 8 bits can be packed as two halves");
  const Target t = target_of(source, bits, asymmetric, form);
  const int64_t group = group_of(source, affine_group);
  PackedMatrix matrix{t.codes, t.scaling, rows, columns, group, 0, nullptr};
  check(matrix, source, bits);
  matrix.tile_bytes = tile_bytes(t.codes, t.scaling, columns, group);
  return matrix;
}

OwnedMatrix repack(const StoredMatrix& stored, PackedAs form, PackedArena& arena, int threads) {
  const PackedMatrix matrix = packed_shape(stored.source, stored.rows, stored.columns, stored.bits,
                                           stored.group, stored.zeros != nullptr, form);
  const Target t{matrix.codes, matrix.scaling};
  const int64_t group = matrix.group;
  OwnedMatrix owned{arena.take(matrix_bytes(matrix)), matrix};
  owned.matrix.data = owned.memory.get();

  uint8_t* bytes = owned.memory.get();
  spread(matrix.tiles(), threads, [&](int64_t tile) {
    pack_tile(stored, t, group, tile, bytes + static_cast<size_t>(tile) * matrix.tile_bytes,
              bytes + (low_tile(owned.matrix, tile) - owned.matrix.data));
  });
  return owned;
}

OwnedMatrix upper_half(const OwnedMatrix& nested, int64_t rows) {
  const PackedMatrix& from = nested.matrix;
  require(from.codes == Codes::kNested8, "the matrix is not packed as two halves");
  require(rows > 0 && rows <= from.rows, "more rows are asked for than the matrix has");
  return {
      nested.memory,
      {Codes::kBits4, Scaling::kHigh, rows, from.columns, from.group, from.tile_bytes, from.data}};
}

}  // namespace fewbit
