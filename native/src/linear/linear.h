// Linear layers: packed weights, quantized activations, and the table of kernels of one
// instruction set. Every kernel of one id computes the same bits on every instruction set, for any
// number of rows and any split of the outputs (see "Row invariance" in docs/concepts.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fewbit {

inline constexpr int kTileRows = 16;   // outputs in a tile: the lanes of every kernel
inline constexpr int kGroup = 32;      // inputs that share an activation scale

enum class Codes : uint8_t { kBits4, kBits5, kBits6, kBits8, kF32, kF16, kBf16 };

// How a code becomes a weight.
enum class Scaling : uint8_t {
  kNone,        // float weights
  kSymmetric,   // s (u - 2^(bits-1)); s fp16 per group
  kAsymmetric,  // s (u - z); s fp16, z u8 per group
  kMinimum,     // d u + m; d, m fp16 per group of 32 (Q4_1)
  kTwoLevel,    // (d sc) u - (dmin mn); d, dmin fp16 per 256; sc, mn 6 bits per 32 (Q4_K)
  kSigned16,    // (d sc) (u - 32); d fp16 per 256, sc int8 per 16 (Q6_K)
};

// A weight matrix [rows, columns], cut into tiles of 16 rows. A tile holds its groups of inputs in
// ascending order, each group's codes followed at once by its scales, so one stream feeds a tile.
// Rows beyond the last are zero. The exact bytes are in layout.h.
struct PackedMatrix {
  Codes codes;
  Scaling scaling;
  int64_t rows;
  int64_t columns;
  int64_t group;       // inputs that share a weight scale: a multiple of 32, or `columns`
  size_t tile_bytes;
  const uint8_t* data;  // 64-byte aligned; ceil(rows / 16) * tile_bytes
};

// Rows of activations. For float weights only `values` is set. For integer weights each run of 32
// inputs has q = round_half_even(x / scale) in [-127, 127], scale = absmax / 127 in float32 (0 for
// an all-zero run), and `sums` the sum of its q, needed by zero points and minima.
struct Activations {
  int64_t rows;
  int64_t columns;
  const float* values;  // [rows, columns]
  const int8_t* q;      // [rows, columns]
  const float* scales;  // [rows, columns / 32]
  const int32_t* sums;  // [rows, columns / 16]: two halves of each run (Q6_K scales 16 inputs)
};

// The kernels of one instruction set.
struct LinearKernels {
  // Quantizes one row of `columns` values.
  void (*quantize)(const float* x, int64_t columns, int8_t* q, float* scales, int32_t* sums);

  // out[r * out_stride + o] = bias[o] (or 0) then the chain over input groups in ascending order,
  //   acc = fma(float(dot), round(scale_w * scale_a), acc),
  // for the outputs of tiles [tile_begin, tile_end) and activation rows [row_begin, row_end).
  // The bias is added last. Float weights: acc = fma(w, x, acc) over ascending inputs.
  void (*multiply)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const Activations& a,
                   int64_t row_begin, int64_t row_end, const float* bias, float* out,
                   int64_t out_stride);

  // Writes one row of the matrix, decoded to float32 exactly as formats/ decodes it.
  void (*decode_row)(const PackedMatrix& w, int64_t row, float* out);
};

enum class Isa : uint8_t { kPortable, kAvx2, kAvx512Vnni, kAmx };

// What this CPU can run, best first is kAmx; and the kernels of one of them.
bool isa_available(Isa isa);
const LinearKernels& linear_kernels(Isa isa);

}  // namespace fewbit
