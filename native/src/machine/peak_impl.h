// The chain of peak.h as a template over the lanes.
#pragma once

#include <cstdint>

#include "simd/simd.h"

namespace fewbit {

template <class S>
int64_t dot4_chain(int64_t steps) {
  // Enough independent sums to hide the latency of one, few enough to stay in registers.
  constexpr int kSums = S::kRegisters >= 32 ? 12 : 4;
  constexpr int64_t kOperations = 2 * 4 * kLanes * kSums;
  alignas(64) uint8_t codes[kSums][4 * kLanes];
  for (auto& line : codes) {
    for (int i = 0; i < 4 * kLanes; ++i) line[i] = static_cast<uint8_t>(i);
  }
  typename S::I32 sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = S::zero_i32();
  const auto inputs = S::load_u8(codes[0]);
  for (int64_t step = 0; step < steps; ++step) {
    // What memory holds may have changed: products cannot be taken out of the loop.
    __asm__ volatile("" ::"r"(codes) : "memory");
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = S::dot4_u7(sums[i], inputs, S::load_u8(codes[i]));
  }
  typename S::I32 total = sums[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) total = S::add(total, sums[i]);
  alignas(64) int32_t out[kLanes];
  S::store(out, total);
  __asm__ volatile("" ::"r"(out) : "memory");
  return steps * kOperations;
}

}  // namespace fewbit
