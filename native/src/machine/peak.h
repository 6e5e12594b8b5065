// How many int8 operations a second this machine's arithmetic units do: what kernels are held to.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

// Multiplies and adds int8 as the instruction set's kernels do, operands from registers and the
// first cache, results of one step in the next; `steps` steps. Returns the operations done, a
// multiplication and an addition being two.
using PeakChain = int64_t (*)(int64_t steps);

// kAmx has the chain of its tiles, every other instruction set that of its dot products.
PeakChain peak_chain(Isa isa);

// Operations per second of `threads` threads that run the chain at once.
double measure_peak(Isa isa, int threads, int64_t steps);

}  // namespace fewbit
