// Every lane function over arrays, for the tests: one table an instruction set.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace fewbit {

enum class Unary : uint8_t { kExp, kTanh, kSigmoid, kSilu, kGeluTanh, kSqrt, kRound, kHalf };

struct SimdProbes {
  // out[i] = f(x[i]); n a multiple of 16. kRound gives round(x) as float, kHalf x through a half.
  void (*unary)(Unary f, const float* x, int64_t n, float* out);
  void (*fma)(const float* a, const float* b, const float* c, int64_t n, float* out);
  void (*from_half)(const uint16_t* h, int64_t n, float* out);
  void (*to_half)(const float* x, int64_t n, uint16_t* h);
  void (*to_bfloat)(const float* x, int64_t n, uint16_t* b);
  // 64 bytes each: out[16] = acc[16] + dot4(u, s); `narrow` takes dot4_u7.
  void (*dot4)(const int32_t* acc, const uint8_t* u, const int8_t* s, bool narrow, int32_t* out);
  // sum and maximum of each run of 16.
  void (*reduce)(const float* x, int64_t n, float* sums, float* maxima);
  // The sum of all 32-bit words of n bytes, n a multiple of 256: what memory can deliver.
  int32_t (*read)(const uint8_t* p, int64_t n);
};

// The probes of the instruction set's lanes; kAmx has those of kAvx512Vnni.
const SimdProbes& simd_probes(Isa isa);

}  // namespace fewbit
