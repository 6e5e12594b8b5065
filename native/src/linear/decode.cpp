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

RunScale run_scale(const PackedMatrix& w, const uint8_t* head, const uint8_t* run_head, int lane) {
  const float s = half_of(head, lane);
  switch (w.scaling) {
    case Scaling::kAsymmetric:
      return {{s, s}, head[32 + lane], 0.0f, false};
    case Scaling::kMinimum:
      return {{s, s}, 0, half_of(head + 32, lane), true};
    case Scaling::kTwoLevel: {
      const float scale = s * static_cast<float>(run_head[lane]);
      const float minimum = half_of(head + 32, lane) * static_cast<float>(run_head[16 + lane]);
      return {{scale, scale}, 0, -minimum, true};
    }
    case Scaling::kSigned16: {
      const auto first = static_cast<int8_t>(run_head[lane]);
      const auto second = static_cast<int8_t>(run_head[16 + lane]);
      return {{s * static_cast<float>(first), s * static_cast<float>(second)}, 32, 0.0f, false};
    }
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
    for (int64_t k = 0; k < w.group; k += kGroup) {
      const uint8_t* codes = next + run_head_bytes(w.scaling);
      decode_run(w, run_scale(w, head, next, lane), codes, lane, out + column + k);
      next += run_bytes(w.codes, w.scaling);
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
