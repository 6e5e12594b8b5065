// Linear layers: packed weights, quantized activations, and the table of kernels of one
// instruction set. Every kernel of one id computes the same bits on every instruction set, for any
// number of rows and any split of the outputs (see "Row invariance" in docs/concepts.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fewbit {

inline constexpr int kTileRows = 16;  // outputs in a tile: the lanes of every kernel
inline constexpr int kGroup = 32;     // inputs that share an activation scale
inline constexpr int kRowBlock = 16;  // activation rows that lie together

enum class Codes : uint8_t {
  kBits2,
  kBits3,
  kBits4,
  kBits5,
  kBits6,
  kBits7,
  kBits8,
  kNested8,  // 8 bits, their upper and lower four apart
  kIq4,      // 4 bits that stand for one of 16 unevenly spaced values (IQ4_NL, IQ4_XS)
  kE2m1,     // 4 bits that stand for twice a float of 4 bits (MXFP4)
  kF32,
  kF16,
  kBf16,
  kF8E4m3,  // with a float32 scale a row
};

// How an unsigned code u becomes a weight. c is the middle of the codes, 2^(bits-1); codes that
// stand for a value v are first replaced by u = v + c, with c = 128 (kIq4) or 16 (kE2m1). Scales
// are fp16; products of two scales are rounded to float32 before use.
enum class Scaling : uint8_t {
  kNone,        // float weights
  kSymmetric,   // s (u - c), s per group
  kAsymmetric,  // s (u - z), z u8 per group
  kMinimum,     // d u + m, d and m per group (Q4_1, Q5_1)
  kExponent,    // 2^(e - 128) (u - c), e u8 per 32 (MXFP4)
  kTwoLevel,    // (d sc) u - (dmin mn), d and dmin per 256; sc, mn 6 bits per 32 (Q4_K, Q5_K)
  kTwoLevel16,  // the same, sc and mn 4 bits per 16 (Q2_K)
  kSigned16,    // (d sc) (u - c), d per 256, sc int8 per 16 (Q6_K)
  kSixBit16,    // (d (sc - 32)) (u - c), d per 256, sc 6 bits per 16 (Q3_K)
  kSixBit32,    // the same, sc per 32 (IQ4_XS)
  kHigh,        // 16 s (u - 7.53125): the upper half of a code of kNested8 and half a step
};

// A weight matrix [rows, columns], cut into tiles of 16 rows. A tile holds its groups of inputs in
// ascending order, each group's scales and codes together, so one stream feeds a tile. Rows beyond
// the last are zero. Columns are a multiple of 32 for integer codes. The bytes: layout.h.
struct PackedMatrix {
  Codes codes;
  Scaling scaling;
  int64_t rows;
  int64_t columns;
  int64_t group;  // inputs that share a weight scale: a multiple of 32, or `columns`
  size_t tile_bytes;
  const uint8_t* data;  // 64-byte aligned; tiles() * tile_bytes, then the lower halves of kNested8

  int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  bool is_float() const { return scaling == Scaling::kNone; }
};

// Rows of activations [rows, columns].
//
// Float weights read `values`, row after row, and nothing else. Integer weights never read
// `values`: each run of 32 inputs has codes q = round_half_even(x / scale) in [-127, 127] with
// scale = absmax / 127 in float32 (0 for an all-zero run, whose codes are 0), of the run, or of all
// runs of the row; or with a scale that is given for all rows. They lie in blocks of
// 16 rows (the last may have fewer), and in a block run after run: what belongs to run g of row r
// is at index slot(r, g), its 32 codes at q + 32 * slot(r, g).
struct Activations {
  int64_t rows;
  int64_t columns;
  float* values;
  int8_t* q;          // [slots][32]
  float* scales;      // [slots]
  float* weighted;    // [slots] round(sum of q * scale): what a minimum of 1 adds
  int32_t* centre;    // [slots] -8 * sum of q: what 4-bit codes centred on 8 add to a dot
  int32_t* centre16;  // [slots][2] -32 * sum of each half: the same for 6-bit codes

  int64_t runs() const { return columns / kGroup; }
  int64_t slot(int64_t row, int64_t run) const {
    const int64_t start = row - row % kRowBlock;
    const int64_t in_block = rows - start < kRowBlock ? rows - start : kRowBlock;
    return start * runs() + run * in_block + row % kRowBlock;
  }
};

// Rows of activations [rows, columns] rounded to bf16 (to nearest, ties to even), for integer
// weights whose inputs are not to be rounded to int8. A value beyond the largest bf16 becomes
// infinite; a NaN stays one.
struct BfloatActivations {
  int64_t rows;
  int64_t columns;  // a multiple of 32
  float* values;    // [rows][columns], each a bf16 number
  float* sums;      // [rows][columns / 16], of 16 values by the tree of simd.h's reduce_add

  int64_t halves() const { return columns / (kGroup / 2); }
};

// Bytes that `rows` rows rounded to bf16 take, and the pointers into one such block of memory,
// 64-byte aligned.
size_t bfloat_bytes(int64_t rows, int64_t columns);
BfloatActivations bfloat_in(void* memory, int64_t rows, int64_t columns);

// Bytes that the codes, scales and sums of `rows` quantized rows take (without `values`), and the
// pointers into one such block of memory, 64-byte aligned. `values` is the caller's own.
size_t activation_bytes(int64_t rows, int64_t columns);
Activations activations_in(void* memory, int64_t rows, int64_t columns, float* values);

// The kernels of one instruction set. They need no state of the thread but the default rounding
// mode, and may be called from many threads at once.
struct LinearKernels {
  // Quantizes x [a.columns] into row `row` of `a`, each run with its own scale.
  void (*quantize)(const float* x, const Activations& a, int64_t row);
  // The same with one scale for all runs. Codes are clipped to [-127, 127]; a run with a value that
  // is not finite gets the scale NaN.
  void (*quantize_with)(const float* x, const Activations& a, int64_t row, float scale);
  // absmax / 127 in float32 of x [columns], columns a multiple of 32; not finite where a value is
  // not.
  float (*scale_of_row)(const float* x, int64_t columns);

  // out[r * out_stride + o] = the chain over runs of 32 inputs in ascending order, from acc = 0,
  //   acc = fma(float(dot), round(scale_w * scale_a), acc)
  //   acc = fma(m, weighted, acc)       where the weights have minima (m = -(dmin mn) for
  //   kTwoLevel)
  // then + bias[o] (+ 0 where bias is null), for the outputs of tiles [tile_begin, tile_end) and
  // activation rows [row_begin, row_end). `dot` is the exact integer sum of (u - z) q or (u - c) q,
  // of u q with minima; for kHigh that of u q plus floor(-7.53125 sum of q). Where scales belong to
  // 16 inputs, a run takes the step or steps twice: for its first half, then for its second,
  // `weighted` being round(sum of q of the half * scale_a). Float weights: acc = fma(w, x, acc)
  // over ascending inputs; kF8E4m3 then acc = acc * scale. Outputs beyond the matrix's rows are not
  // written. For many rows, give a thread all the rows and a range of tiles: a tile is unpacked
  // once a call.
  void (*multiply)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                   const Activations& a, int64_t row_begin, int64_t row_end, const float* bias,
                   float* out, int64_t out_stride);
};

// The weight-only kernels of one instruction set: integer weights, activations rounded to bf16.
// They ask of the thread what LinearKernels do.
struct WeightOnlyKernels {
  // Rounds x [columns] into values [columns] and sums [columns / 16]; columns divide by 32.
  void (*round)(const float* x, int64_t columns, float* values, float* sums);

  // out[r * out_stride + o] = the chain over runs of 32 inputs in ascending order, from acc = 0,
  //   p = 0, then p = fma(w, x, p) over the run's inputs in ascending order
  //   acc = fma(p, scale_w, acc)
  //   acc = fma(m, sum, acc)   where the weights have minima; sum = round(sums[0] + sums[1])
  // then + bias[o] (+ 0 where bias is null). w is the exact integer u - z or u - c, u with minima.
  // Where scales belong to 16 inputs, the steps are taken for each half of a run, with a p of its
  // own and the half's own sum. Ranges, strides and bias as in LinearKernels::multiply; a tile is
  // unpacked once a call.
  void (*multiply)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                   const BfloatActivations& a, int64_t row_begin, int64_t row_end,
                   const float* bias, float* out, int64_t out_stride);
};

// Writes one row of the matrix [columns], decoded to float32 exactly as formats/ decodes it.
void decode_row(const PackedMatrix& w, int64_t row, float* out);

enum class Isa : uint8_t { kPortable, kNeon, kAvx2, kAvx512Vnni, kAmx };

// What this CPU can run (kAmx is the best: AVX-512 VNNI, and AMX for many rows), and the kernels
// of one of them.
bool isa_available(Isa isa);
const LinearKernels& linear_kernels(Isa isa);
const WeightOnlyKernels& weight_only_kernels(Isa isa);  // kAmx: those of kAvx512Vnni

}  // namespace fewbit
