// X^T X of float32 rows and what else calibration sums up of them: the statistics of a linear
// layer's input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/thread_pool.h"
#include "linear/linear.h"

namespace fewbit {

inline constexpr int64_t kPanelColumns = 64;
// Rows whose products are summed up before the sum is added to the matrix: long enough that adding
// costs little, short enough that 65,536 rows round 256 times there.
inline constexpr int64_t kGramRows = 256;

// Columns whose moments are summed together: enough of a row for the processor to see a stream.
inline constexpr int64_t kMomentColumns = 512;

// Where the sums of some columns lie: of x^2, of |x|, and the largest |x|.
struct ColumnSums {
  double* squares;
  double* absolute;
  float* largest;
};

// The kernels of one id. A panel is 64 columns of up to kGramRows rows, converted and rearranged;
// columns and rows beyond the last are zero.
struct GramKernels {
  const char* id;
  size_t panel_bytes;  // of kGramRows rows, a multiple of 64
  // Packs `columns` columns of `rows` rows at x, `stride` floats from row to row.
  void (*pack)(const float* x, int64_t stride, int64_t rows, int64_t columns, uint8_t* panel);
  // Adds to c, [64][64] floats with `stride` from row to row, the sum over the rows of a[i] b[j]:
  // outputs i < a_columns and j < b_columns.
  void (*multiply)(const uint8_t* a, const uint8_t* b, int64_t rows, int64_t a_columns,
                   int64_t b_columns, float* c, int64_t stride);
  // Adds `rows` rows of at most kMomentColumns columns, `stride` floats from row to row, to sums.
  void (*moments)(const float* x, int64_t stride, int64_t rows, int64_t columns,
                  const ColumnSums& sums);
};

// Whether this CPU has AMX's products of bf16.
bool has_bfloat_tiles();

// The best kernels of an instruction set that this CPU has. kAmx: "bf16/amx", inputs rounded to
// bf16 (to nearest even, subnormal ones to 0) and each product of two exact; the others "f32/..",
// all with the same bits: p = fma(x_i, x_j, p) over the rows of a block, then g = g + p.
const GramKernels& gram_kernels(Isa isa);

// The best of an instruction set whose products are float32.
const GramKernels& float_gram_kernels(Isa isa);

// Rows of a matrix [rows, columns]; where each block of at most kGramRows rows begins is counted
// from the start of the sequence that it belongs to.
struct GramInput {
  const float* x;
  int64_t columns;
  std::vector<int64_t> lengths;  // rows of each sequence, in order
};

// Adds X^T X to the squares of 64 x 64 elements of `gram` [columns, columns] on and above the
// diagonal. Blocks are added in their order, whatever the number of threads.
void add_gram(const GramInput& input, float* gram, const GramKernels& kernels, ThreadPool& pool);

// Adds A^T B, of two inputs with the same sequences, to `cross` [left.columns, right.columns], by
// the same kernels in the same blocks.
void add_cross(const GramInput& left, const GramInput& right, float* cross,
               const GramKernels& kernels, ThreadPool& pool);

// Copies what is above the diagonal of `gram` [columns, columns] to below it.
void mirror_gram(float* gram, int64_t columns, ThreadPool& pool);

// Sums over the rows of one column after another, in float64 and in the order of the rows, so that
// they depend on no batch: x^2 (exact before it is added), |x|, and the largest |x| (NaN where one
// is).
void add_moments(const float* x, int64_t rows, int64_t columns, const ColumnSums& sums,
                 const GramKernels& kernels, ThreadPool& pool);

}  // namespace fewbit
