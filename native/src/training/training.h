// The passes over memory that tuning by distillation spends its time on beside matrix products:
// bf16 in and out, float32 in between, each element touched once or twice.
//
// Rows do not know each other and are summed in the order of their elements, so what a row gets
// does not depend on threads. fewbit.runtime.torch_native is the only user and documents them.
#pragma once

#include <cstdint>

#include "linear/linear.h"
#include "simd/simd.h"

namespace fewbit {

// A matrix on its grid: value = (level - zero) * scale + offset, rounded after every operation.
struct GridRows {
  const void* levels;    // int8 or uint8 [rows][groups][size]
  bool is_signed;        // int8
  const float* scales;   // [rows][groups]
  const float* offsets;  // [rows][groups] or null
  const float* zeros;    // [rows][groups] or null
  int64_t groups;
  int64_t size;  // of a group, a multiple of 16
};

// One row of an attention's scores: positions [first, last) are seen.
struct SeenRow {
  uint16_t* values;
  float* room;  // [length], where exponentials wait for their sum; not for gradients
  int64_t length;
  int64_t first;
  int64_t last;
};

// What a row of logits counts, and the soft caps of both sides, 0 for none.
struct PullTask {
  int64_t length;
  float share;
  float their_cap;
  float our_cap;
};

// The inputs of a gated activation, its result's gradient, and where theirs go.
struct GatedPull {
  const uint16_t* gradient;
  const uint16_t* gate;
  const uint16_t* up;
  uint16_t* towards_gate;
  uint16_t* towards_up;
};

// A norm's input, float32 or bf16, and 1 / sqrt(mean(x^2) + eps) of every row.
struct NormRows {
  const void* values;  // [rows][width]
  bool halves;         // bf16
  int64_t width;
  const float* factor;  // [width]
  float* inverse;       // [rows]
};

// The gradient of a norm's result, and where those of its input (of the input's type) and of its
// factor go.
struct NormPull {
  const uint16_t* gradient;
  void* towards;
  float* factor;  // [width], added to
};

struct TrainingKernels {
  // The values of a row as bf16.
  void (*dequantize)(const GridRows& matrix, int64_t row, uint16_t* out);

  // Per group of a row, with the gradient g of its values: sums of g (level - zero), and of g into
  // `sums` where that is not null.
  void (*gather)(const GridRows& matrix, int64_t row, const uint16_t* gradient, float* products,
                 float* sums);

  // softmax(scale * x) over what is seen, 0 elsewhere, in place.
  void (*softmax)(const SeenRow& row, float scale);

  // With probabilities p and their gradient in `row`: scale * p (g - sum p g), 0 elsewhere.
  void (*softmax_back)(const SeenRow& row, const uint16_t* probabilities, float scale);

  // Returns KL(softmax(theirs) || softmax(ours)), and puts its gradient in `ours`, times the row's
  // share, in their place.
  float (*pull)(const PullTask& task, const uint16_t* theirs, uint16_t* ours);

  // silu(gate) * up, or with gelu (tanh).
  void (*gated)(const uint16_t* gate, const uint16_t* up, int64_t length, bool gelu, uint16_t* out);

  // Its gradients, with that of the result.
  void (*gated_back)(const GatedPull& pull, int64_t length, bool gelu);

  // A row's norm, x times its inverse times the factor, with the inverse put in its place.
  void (*norm)(const NormRows& rows, int64_t row, float eps, uint16_t* out);

  // Its gradients, with that of the result.
  void (*norm_back)(const NormRows& rows, int64_t row, const NormPull& pull);

  // Turns a head, its halves being the two coordinates, by angles whose cosines and then sines are
  // in `table` [2 half]; `sign` 1 or -1 is the direction.
  void (*rotate)(const uint16_t* x, const float* table, int64_t half, float sign, uint16_t* out);
};

const TrainingKernels& training_kernels(Isa isa);

}  // namespace fewbit
