// The Program as the native executor sees it: src/fewbit/program.py with buffers numbered and
// slots resolved to packed weights.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "linear/linear.h"
#include "ops/ops.h"

namespace fewbit {

using Vector = std::vector<float>;
using Matrix = std::shared_ptr<const PackedMatrix>;

enum class Activation : uint8_t { kSilu, kGeluTanh };

// The rows of a buffer that the caller hands in with each step.
struct GivenOp {};

struct EmbedOp {
  Matrix weight;
  float scale;
};

struct RopeTableOp {
  Vector frequencies;
  double factor;
};

struct RmsNormOp {
  int x;
  Vector weight;  // with the op's offset added
  int64_t width;
  float eps;
};

// How a linear layer's input is rounded before it is multiplied.
enum class InputRounding : uint8_t {
  kNone,        // float32, for float weights
  kInt8Run,     // int8, a scale per row and 32 inputs
  kInt8Row,     // int8, a scale per row
  kInt8Static,  // int8, one scale
  kBfloat16,    // bf16, for integer weights that are run as floats
  kSplit,       // float32 as a sum of three bf16 numbers, for bf16 weights
};

inline constexpr int kInputRoundings = 6;

constexpr bool is_int8(InputRounding rounding) {
  return rounding == InputRounding::kInt8Run || rounding == InputRounding::kInt8Row ||
         rounding == InputRounding::kInt8Static;
}

// Whether nothing is rounded, as for float weights.
constexpr bool is_float(InputRounding rounding) {
  return rounding == InputRounding::kNone || rounding == InputRounding::kSplit;
}

// The order in which a matrix takes its inputs: column j of its codes multiplies input order[j].
// Null where that is input j.
using Order = std::shared_ptr<const std::vector<int32_t>>;

struct Rounding {
  InputRounding kind;
  float scale;                                  // of kInt8Static
  const std::vector<int32_t>* order = nullptr;  // in which the values are taken; null for theirs
};

struct LinearOp {
  int x;
  Matrix weight;
  Vector bias;  // empty where there is none
  InputRounding rounding = InputRounding::kNone;
  float input_scale = 0.0f;  // of kInt8Static
  Order order;               // of integer weights
};

struct RopeOp {
  int x, table;
  int64_t head_dim;
};

struct HadamardOp {
  int x;
  int64_t head_dim;
};

struct AttentionOp {
  int q, k, v;
  int layer;
  int64_t heads, kv_heads, head_dim;
  float scale;
  int64_t window;  // 0: none
  float softcap;   // 0: none
};

struct GatedOp {
  int gate, up;
  Activation activation;
};

// The matrices of one expert, and how the input of each is rounded.
struct Expert {
  Matrix gate, up, down;
  InputRounding gate_rounding, up_rounding, down_rounding;
  float input_scale, inner_scale;  // of kInt8Static, for gate and up and for down
  Order input_order, inner_order;  // likewise, of integer weights
};

struct MixtureOp {
  int x, router;
  std::vector<Expert> experts;
  int64_t used;  // experts of a row
  bool normalized;
  Activation activation;
  int64_t width() const { return experts.front().gate->rows; }
};

struct AddOp {
  int x, y;
};

struct SelectRowsOp {
  int x;
};

struct SoftcapOp {
  int x;
  float cap;
};

struct Op {
  int out;
  std::variant<GivenOp, EmbedOp, RopeTableOp, RmsNormOp, LinearOp, RopeOp, HadamardOp, AttentionOp,
               GatedOp, MixtureOp, AddOp, SelectRowsOp, SoftcapOp>
      what;
};

struct Buffer {
  int64_t width;
  bool tapped;
};

struct Program {
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  int logits = -1;  // of a segment, which has none
  int64_t layers = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;
  CacheType cache = CacheType::kF16;
};

}  // namespace fewbit
