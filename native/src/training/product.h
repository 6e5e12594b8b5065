// Products of bf16 matrices for tuning: forward, towards inputs and towards weights, whichever
// index of a factor lies side by side in memory.
//
// Only AMX's bf16 tiles are worth a product of our own; elsewhere torch multiplies. An element is
// one chain of float32 sums over the depth, two products at a time, whatever the threads.
#pragma once

#include <cstdint>

#include "executor/thread_pool.h"
#include "linear/linear.h"

namespace fewbit {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Element (i, k), k being summed over, is values[i * step + k * depth_step]; one step is 1.
struct Factor {
  const uint16_t* values;
  int64_t step;
  int64_t depth_step;
};

// out[i][j] = sum over k of left(i, k) right(j, k), plus what out holds if `add`.
struct Product {
  Factor left;
  Factor right;
  int64_t rows;
  int64_t columns;
  int64_t depth;
  uint16_t* out;  // [rows][stride]
  int64_t stride;
  bool add = false;
};

// Some outputs; both firsts are multiples of 32.
struct ProductBlock {
  int64_t first_row, rows;
  int64_t first_column, columns;
};

// Whether `multiply` can run.
bool multiplies(Isa isa);

void multiply(const Product& product, ThreadPool& pool);

// On the calling thread alone.
void multiply_alone(const Product& product);

}  // namespace fewbit
