// Everything dynamic about one step: src/fewbit/runtime/step.py on plain memory.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/program.h"

namespace fewbit {

struct Span {
  int64_t start, count, position;
  const int32_t* pages;
  int64_t page_count;
  int64_t trunk = -1;  // the span that it branches off
};

// Where the rows of a buffer lie outside the executor: those of a GivenOp, which are only read, or
// of a tapped buffer, which the step writes there instead of into memory of its own.
struct BoundRows {
  int buffer;
  float* rows;
};

struct StepInput {
  const int32_t* tokens;
  int64_t rows;
  std::vector<Span> spans;
  const int32_t* wanted;
  int64_t wanted_count;
  std::vector<BoundRows> bound;
};

// Throws std::invalid_argument with one sentence that names what is wrong; nothing was run.
void check_step(const StepInput& step, const Program& program, int64_t pages);

}  // namespace fewbit
