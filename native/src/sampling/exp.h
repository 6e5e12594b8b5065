// e^x for x <= 0 in float32, the same bits on every machine.
#pragma once

#include <bit>
#include <cstdint>

namespace fewbit {

// Relative error below 2^-22 for x in [-87, 0]; 0 below that, where the result would be subnormal.
// x = n ln 2 + r with |r| <= ln(2) / 2; ln 2 is split so that n * kHigh is exact (n has 7 bits,
// kHigh 9). e^r is its Taylor polynomial to r^7, whose remainder is under 2^-27. No fma, so that
// the compiler may use any vector width.
inline float exp_nonpositive(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kHigh = 0.693359375f;
  constexpr float kLow = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
  // As x <= 0, its magnitude's bits order it; comparing them as integers keeps the loop around this
  // a vector, where a comparison of floats might trap and would not.
  constexpr int32_t kLimit = std::bit_cast<int32_t>(87.0f);
  const int32_t magnitude = std::bit_cast<int32_t>(x) & 0x7fffffff;
  const float clamped = -std::bit_cast<float>(magnitude < kLimit ? magnitude : kLimit);
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kHigh) - n * kLow;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound) + 127;
  const float product = p * std::bit_cast<float>(exponent << 23);
  const int32_t keep = magnitude > kLimit ? 0 : -1;
  return std::bit_cast<float>(std::bit_cast<int32_t>(product) & keep);
}

}  // namespace fewbit
