// The ops between the linear layers, one table of functions per instruction set. Every function
// computes the same bits in every table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

inline constexpr int64_t kPage = 64;        // positions in a page; runtime/step.py PAGE
inline constexpr int64_t kKeyBlock = 256;   // keys that share one maximum; absolute positions
inline constexpr int64_t kRun = 32;         // elements that share a scale; program.py KV_GROUP
inline constexpr int64_t kMaxQueries = 48;  // query rows times heads of one attend call

// How the store holds keys and values; src/fewbit/program.py says how each rounds.
enum class CacheType : uint8_t { kF32, kF16, kBf16, kInt8, kInt4 };
inline constexpr int kCacheTypes = 5;

inline constexpr bool is_integer(CacheType type) {
  return type == CacheType::kInt8 || type == CacheType::kInt4;
}

// Consecutive query rows of one sequence, and the query heads that share one key head.
//
// The store has for each page [keys | values]. As floats: keys as [page / 16][head_dim][16 keys],
// values as [page][head_dim rounded up to 16]. As integers, in runs of 32 elements of the head:
// - keys as [page / 16][runs][codes | 16 fp16 scales]; int8 codes are [16 pairs][16 keys][2], int4
//   codes [16 pairs][16 keys] with a pair's first element in the low half of its byte;
// - values as [page][runs][codes], then [page][runs] fp16 scales; int8 codes are [32], int4 codes
//   [16] with element j in the low half of byte j and element j + 16 in the high half.
// An int4 code c lies as c + 8.
struct Attend {
  const float* q;  // row i, head h at q + i * q_stride + h * head_dim
  int64_t q_stride;
  float* out;  // likewise
  int64_t out_stride;
  int64_t rows, heads, head_dim;
  int64_t position;  // of the first row
  float scale;
  float softcap;         // 0: none
  int64_t window;        // 0: none
  const uint8_t* store;  // page 0 of the key head
  size_t page_stride;    // bytes between pages
  size_t values_offset;  // bytes between a page's keys and its values
  const int32_t* pages;  // of the sequence
  // Blocks of 256 keys to walk. All that the rows read, with the result in `out`; or some of them
  // for a single row, each left in `partials`: head h at partials + h * partials_stride, in it
  // block after block from the row's first.
  int64_t block_begin, block_end;
  float* partials;
  int64_t partials_stride;
  float* scratch;  // attend_scratch_floats(head_dim)
};

size_t attend_scratch_floats(int64_t head_dim);

// Bytes of a page's keys, or of its values, of one key head.
size_t page_key_bytes(CacheType type, int64_t head_dim);
size_t page_value_bytes(CacheType type, int64_t head_dim);

// The first block that a row at `position` reads, and the one after its last.
inline int64_t first_block(int64_t position, int64_t window) {
  return window > 0 && position >= window ? (position - window + 1) / kKeyBlock : 0;
}
inline int64_t end_block(int64_t position) { return position / kKeyBlock + 1; }

// Floats of one head's block in `partials`: maximum and sum, then the weighted values.
inline int64_t partial_floats(int64_t head_dim) { return 16 + (head_dim + 15) / 16 * 16; }

// One row's key and value of one key head, rounded to the store's type.
using StoreRow = void (*)(const float* x, int64_t head_dim, int64_t slot, uint8_t* page);

struct StoreKernels {
  StoreRow store_key;    // `page` is where the page's keys start, `slot` the position in the page
  StoreRow store_value;  // `page` is where the page's values start
  void (*attend)(const Attend& attend);
};

struct OpKernels {
  // x / sqrt(mean(x^2) + eps) * weight over `width` elements. 16 lanes and one tree for the sum.
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, float* out);
  // One head: halves (a, b) -> (a cos - b sin, b cos + a sin); table = [cos | sin].
  void (*rope)(const float* x, const float* table, int64_t head_dim, float* out);
  // One head: x H / sqrt(head_dim), as Hadamard of program.py has it; head_dim a power of two.
  void (*hadamard)(const float* x, int64_t head_dim, float* out);
  void (*scale)(float* x, float factor, int64_t n);
  void (*add)(const float* x, const float* y, int64_t n, float* out);
  void (*silu_gate)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_gate)(const float* gate, const float* up, int64_t n, float* out);
  void (*softcap)(const float* x, float cap, int64_t n, float* out);
  // A row's experts by rank and their weights, as Mixture of program.py has them: `used` of
  // `experts` logits. The sum of a softmax has 16 lanes and one tree.
  void (*route)(const float* logits, int64_t experts, int64_t used, bool normalized, int32_t* ids,
                float* weights);
  // out = fma(x, factor, out).
  void (*add_scaled)(const float* x, float factor, int64_t n, float* out);
  // One head's blocks, ascending, into its result; scratch of head_dim rounded up to 16.
  void (*merge_partials)(const float* partials, int64_t blocks, int64_t head_dim, float* scratch,
                         float* out);
  StoreKernels store[kCacheTypes];
};

// The table of an instruction set; kAmx uses that of kAvx512Vnni.
const OpKernels& op_kernels(Isa isa);

// out = [cos(p f) .., sin(p f) ..] * factor, each within 0.501 ulp of float32: the product p f is
// exact in float64, for positions below 2^29 and |p f| below 2^20.
void rope_table_row(int64_t position, const float* frequencies, int64_t count, double factor,
                    float* out);

// What the per-instruction-set files define.
extern const OpKernels kOpsPortable;
#if defined(__x86_64__) || defined(_M_X64)
extern const OpKernels kOpsAvx2;
extern const OpKernels kOpsAvx512;
#elif defined(__aarch64__)
extern const OpKernels kOpsNeon;
#endif

}  // namespace fewbit
