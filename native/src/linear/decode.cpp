// One row of a packed matrix as float32, by the arithmetic of formats/: products of scales rounded
// first, then (scale times code) and, where there is a minimum, one addition.
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

// The code of input 4 j + b of a run, in the lane of one row.
int code_at(Codes kind, const uint8_t* codes, int lane, int j, int b) {
  const int byte = 4 * lane + b;
  if (kind == Codes::kBits8) return codes[kVector * j + byte];
  const int nibble = (codes[kVector * (j % 4) + byte] >> (j < 4 ? 0 : 4)) & 0x0f;
  if (kind == Codes::kBits5) return nibble | (((codes[kVector * 4 + byte] >> j) & 1) << 4);
  if (kind == Codes::kBits6) {
    return nibble | (((codes[kVector * (4 + j / 4) + byte] >> (2 * (j % 4))) & 3) << 4);
  }
  return nibble;
}

struct RunScale {
  float scale[2];  // of inputs 0..15 and 16..31
  int zero;
  float minimum;
  bool has_minimum;
};

// Step i of a group.
int step_at(Scaling scaling, const uint8_t* head, int64_t i) {
  const uint8_t* steps = head + steps_offset(scaling);
  if (scaling == Scaling::kSigned16) return static_cast<int8_t>(steps[i]);
  const int64_t vector = i / kVector, byte = i % kVector;
  const int nibble = (steps[kVector * (vector % 2) + byte] >> (vector < 2 ? 0 : 4)) & 0x0f;
  const int pair = (steps[2 * kVector + byte] >> (2 * vector)) & 3;
  return nibble | (pair << 4);
}

RunScale run_scale(const PackedMatrix& w, const uint8_t* head, int64_t run, int lane) {
  const float s = half_of(head, lane);
  const auto step = [&](int half) {
    return static_cast<float>(step_at(w.scaling, head, kRunSteps * run + 16 * half + lane));
  };
  switch (w.scaling) {
    case Scaling::kAsymmetric:
      return {{s, s}, head[32 + lane], 0.0f, false};
    case Scaling::kMinimum:
      return {{s, s}, 0, half_of(head + 32, lane), true};
    case Scaling::kTwoLevel: {
      const float scale = s * step(0);
      return {{scale, scale}, 0, -(half_of(head + 32, lane) * step(1)), true};
    }
    case Scaling::kSigned16:
      return {{s * step(0), s * step(1)}, 32, 0.0f, false};
    default:
      return {{s, s}, 1 << (bits_of(w.codes) - 1), 0.0f, false};
  }
}

void decode_run(const PackedMatrix& w, const RunScale& scale, const uint8_t* codes, int lane,
                float* out) {
  for (int k = 0; k < kGroup; ++k) {
    const int u = code_at(w.codes, codes, lane, k / 4, k % 4);
    const float x = scale.scale[k / 16] * static_cast<float>(u - scale.zero);
    out[k] = scale.has_minimum ? x + scale.minimum : x;
  }
}

void decode_integer_row(const PackedMatrix& w, const uint8_t* tile, int lane, float* out) {
  const uint8_t* next = tile;
  for (int64_t column = 0; column < w.columns; column += w.group) {
    const uint8_t* head = next;
    next += head_bytes(w.scaling);
    for (int64_t run = 0; run < w.group / kGroup; ++run) {
      decode_run(w, run_scale(w, head, run, lane), next, lane, out + column + kGroup * run);
      next += code_bytes(w.codes);
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

}  // namespace

void decode_row(const PackedMatrix& w, int64_t row, float* out) {
  const uint8_t* tile = w.data + static_cast<size_t>(row / kTileRows) * w.tile_bytes;
  const int lane = static_cast<int>(row % kTileRows);
  if (!w.is_float()) return decode_integer_row(w, tile, lane, out);
  for (int64_t c = 0; c < w.columns; ++c) out[c] = float_at(w.codes, tile, c * kTileRows + lane);
}

}  // namespace fewbit
