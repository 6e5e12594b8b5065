// One row of a packed matrix as float32, by the arithmetic of formats/: products of scales rounded
// first, then (scale times code) and, where there is a minimum, one addition.
#include <cmath>
#include <cstring>

#include "linear/layout.h"
#include "linear/linear.h"
#include "simd/half.h"

namespace fewbit {

namespace {

float half_of(const uint8_t* p, int64_t i) {
  uint16_t h;
  std::memcpy(&h, p + 2 * i, 2);
  return half_to_float(h);
}

// The planes of layout.h: what quad j has in byte `byte` of its vectors.
int nibble_at(const uint8_t* plane, int byte, int j) {
  return (plane[kVector * (j % 4) + byte] >> (j < 4 ? 0 : 4)) & 0x0f;
}

int pair_at(const uint8_t* plane, int byte, int j) {
  return (plane[kVector * (j / 4) + byte] >> (2 * (j % 4))) & 3;
}

int bit_at(const uint8_t* plane, int byte, int j) { return (plane[byte] >> j) & 1; }

// Where the codes of a run are, and the lower halves of kNested8.
struct RunBytes {
  const uint8_t* at;
  const uint8_t* lower;
};

// The unsigned number of input 4 j + b of a run, in the lane of one row.
int code_at(Codes kind, const RunBytes& run, int lane, int j, int b) {
  const uint8_t* codes = run.at;
  const int byte = 4 * lane + b;
  const uint8_t* third = codes + 2 * kVector;  // the planes behind pairs, nibbles, and both
  const uint8_t* fifth = codes + 4 * kVector;
  const uint8_t* seventh = codes + 6 * kVector;
  switch (kind) {
    case Codes::kBits2:
      return pair_at(codes, byte, j);
    case Codes::kBits3:
      return pair_at(codes, byte, j) | (bit_at(third, byte, j) << 2);
    case Codes::kBits5:
      return nibble_at(codes, byte, j) | (bit_at(fifth, byte, j) << 4);
    case Codes::kBits6:
      return nibble_at(codes, byte, j) | (pair_at(fifth, byte, j) << 4);
    case Codes::kBits7:
      return nibble_at(codes, byte, j) | (pair_at(fifth, byte, j) << 4) |
             (bit_at(seventh, byte, j) << 6);
    case Codes::kBits8:
      return codes[kVector * j + byte];
    case Codes::kNested8:
      return (nibble_at(codes, byte, j) << 4) | nibble_at(run.lower, byte, j);
    case Codes::kIq4:
    case Codes::kE2m1:
      return table_of(kind)[nibble_at(codes, byte, j)];
    default:
      return nibble_at(codes, byte, j);
  }
}

// Of inputs 0..15 and 16..31.
struct RunScale {
  float scale[2];
  int zero = 0;
  float minimum[2] = {0.0f, 0.0f};
};

// Byte i of the steps, those of 6 bits joined.
int step_at(Scaling scaling, const uint8_t* head, int64_t i) {
  const uint8_t* steps = head + steps_offset(scaling);
  if (steps_bytes(scaling) == kSteps) return steps[i];
  const int64_t vector = i / kVector, byte = i % kVector;
  const int nibble = (steps[kVector * (vector % 2) + byte] >> (vector < 2 ? 0 : 4)) & 0x0f;
  const int pair = (steps[2 * kVector + byte] >> (2 * vector)) & 3;
  return nibble | (pair << 4);
}

// The step of kSixBit32.
int single_step_at(const uint8_t* head, int64_t run, int lane) {
  const uint8_t* steps = head + steps_offset(Scaling::kSixBit32);
  uint16_t pairs;
  std::memcpy(&pairs, steps + 2 * lane, 2);
  const int nibbles = steps[32 + 16 * (run % 4) + lane];
  return ((nibbles >> (run < 4 ? 0 : 4)) & 0x0f) | (((pairs >> (2 * run)) & 3) << 4);
}

RunScale two_level_scale(const PackedMatrix& w, const uint8_t* head, int64_t run, int lane) {
  const float d = half_of(head, lane);
  const int centre = centre_of(w.codes);
  const int first = step_at(w.scaling, head, kRunSteps * run + lane);
  const int second = step_at(w.scaling, head, kRunSteps * run + 16 + lane);
  const auto scaled = [](float by, int step) { return by * static_cast<float>(step); };
  switch (w.scaling) {
    case Scaling::kTwoLevel: {
      const float scale = scaled(d, first), minimum = -scaled(half_of(head + 32, lane), second);
      return {{scale, scale}, 0, {minimum, minimum}};
    }
    case Scaling::kTwoLevel16: {
      const float dmin = half_of(head + 32, lane);
      return {{scaled(d, first & 0x0f), scaled(d, second & 0x0f)},
              0,
              {-scaled(dmin, first >> 4), -scaled(dmin, second >> 4)}};
    }
    case Scaling::kSigned16:
      return {{scaled(d, static_cast<int8_t>(first)), scaled(d, static_cast<int8_t>(second))},
              centre};
    default:
      return {{scaled(d, first - 32), scaled(d, second - 32)}, centre};
  }
}

RunScale run_scale(const PackedMatrix& w, const uint8_t* head, int64_t run, int lane) {
  const int centre = centre_of(w.codes);
  switch (w.scaling) {
    case Scaling::kExponent: {
      const float s = std::ldexp(1.0f, head[lane] - 128);
      return {{s, s}, centre};
    }
    case Scaling::kSixBit32: {
      const auto step = static_cast<float>(single_step_at(head, run, lane) - 32);
      const float s = half_of(head, lane) * step;
      return {{s, s}, centre};
    }
    case Scaling::kHigh: {
      const float s = 16.0f * half_of(head, lane);
      return {{s, s}};
    }
    case Scaling::kSymmetric:
    case Scaling::kAsymmetric:
    case Scaling::kMinimum: {
      const float s = half_of(head, lane);
      if (w.scaling == Scaling::kSymmetric) return {{s, s}, centre};
      if (w.scaling == Scaling::kAsymmetric) return {{s, s}, head[32 + lane]};
      const float m = half_of(head + 32, lane);
      return {{s, s}, 0, {m, m}};
    }
    default:
      return two_level_scale(w, head, run, lane);
  }
}

void decode_run(const PackedMatrix& w, const RunScale& s, const RunBytes& codes, int lane,
                float* out) {
  for (int k = 0; k < kGroup; ++k) {
    const int u = code_at(w.codes, codes, lane, k / 4, k % 4);
    if (w.scaling == Scaling::kHigh) {
      out[k] = s.scale[0] * (static_cast<float>(u) - 7.53125f);
      continue;
    }
    const float x = s.scale[k / 16] * static_cast<float>(u - s.zero);
    out[k] = has_minimum(w.scaling) ? x + s.minimum[k / 16] : x;
  }
}

void decode_integer_row(const PackedMatrix& w, int64_t tile, int lane, float* out) {
  const uint8_t* next = w.data + static_cast<size_t>(tile) * w.tile_bytes;
  const uint8_t* lower = low_tile(w, tile);
  for (int64_t column = 0; column < w.columns; column += w.group) {
    const uint8_t* head = next;
    next += head_bytes(w.scaling);
    for (int64_t run = 0; run < w.group / kGroup; ++run) {
      decode_run(w, run_scale(w, head, run, lane), {next, lower}, lane,
                 out + column + kGroup * run);
      next += code_bytes(w.codes);
      lower += low_bytes(w.codes);
    }
  }
}

float float_at(Codes kind, const uint8_t* tile, int64_t i) {
  if (kind == Codes::kF16) return half_of(tile, i);
  if (kind == Codes::kBf16) {
    uint16_t b;
    std::memcpy(&b, tile + 2 * i, 2);
    return bfloat_to_float(b);
  }
  float f;
  std::memcpy(&f, tile + 4 * i, 4);
  return f;
}

// Exponent and mantissa of an e4m3 number stand in a float32 as those of 2^-120 times it.
float decode_e4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t bits = sign | (static_cast<uint32_t>(code & 0x7f) << 20);
  float small;
  std::memcpy(&small, &bits, 4);
  return small * 0x1p120f;
}

void decode_scaled_row(const uint8_t* tile, int64_t columns, int lane, float* out) {
  const float scale = float_at(Codes::kF32, tile, lane);
  const uint8_t* codes = tile + float_head_bytes(Codes::kF8E4m3) + lane;
  for (int64_t c = 0; c < columns; ++c) out[c] = decode_e4m3(codes[c * kTileRows]) * scale;
}

}  // namespace

void decode_row(const PackedMatrix& w, int64_t row, float* out) {
  const uint8_t* tile = w.data + static_cast<size_t>(row / kTileRows) * w.tile_bytes;
  const int lane = static_cast<int>(row % kTileRows);
  if (!w.is_float()) return decode_integer_row(w, row / kTileRows, lane, out);
  if (w.codes == Codes::kF8E4m3) return decode_scaled_row(tile, w.columns, lane, out);
  for (int64_t c = 0; c < w.columns; ++c) out[c] = float_at(w.codes, tile, c * kTileRows + lane);
}

}  // namespace fewbit
