#include <cstdint>

#include "ops/ops.h"

namespace fewbit {

namespace {

// pi/2 in three parts (Cody and Waite): the first two have 33 bits, so their products with a
// quadrant below 2^20 are exact; what is left of pi/2 beyond the third is below 2^-117.
constexpr double kHalfPi1 = 0x1.921fb544p+0;
constexpr double kHalfPi2 = 0x1.0b4611a6p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// Adding it leaves a double rounded to an integer, ties to even.
constexpr double kRounder = 0x1.8p52;

// Taylor series on |r| <= pi/4; the first omitted terms are below 2^-52 of the result.
double sine(double r) {
  const double z = r * r;
  double p = -1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  return r + r * z * p;
}

double cosine(double r) {
  const double z = r * r;
  double p = 1.0 / 20922789888000.0;
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  return (1.0 - 0.5 * z) + z * z * p;
}

}  // namespace

void rope_table_row(int64_t position, const float* frequencies, int64_t count, double factor,
                    float* out) {
  const auto p = static_cast<double>(position);
  for (int64_t i = 0; i < count; ++i) {
    const double angle = p * static_cast<double>(frequencies[i]);
    const double quadrant = (angle * kTwoOverPi + kRounder) - kRounder;
    const double r = ((angle - quadrant * kHalfPi1) - quadrant * kHalfPi2) - quadrant * kHalfPi3;
    const double s = sine(r);
    const double c = cosine(r);
    const int64_t turn = static_cast<int64_t>(quadrant) & 3;
    const double cos_value = turn & 1 ? s : c;
    const double sin_value = turn & 1 ? c : s;
    out[i] = static_cast<float>((turn == 1 || turn == 2 ? -cos_value : cos_value) * factor);
    out[count + i] = static_cast<float>((turn >= 2 ? -sin_value : sin_value) * factor);
  }
}

}  // namespace fewbit
