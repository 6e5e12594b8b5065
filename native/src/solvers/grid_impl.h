// Arithmetic that the searches for scales share, over S.
#pragma once

#include "simd/simd.h"
#include "solvers/grid_shape.h"

namespace fewbit {

template <class S>
struct GridMath {
  using F32 = typename S::F32;

  // a / b, and 0 where b is 0.
  FEWBIT_INLINE F32 ratio(F32 a, F32 b) {
    const auto none = S::equal(b, S::zero_f32());
    return S::select(none, S::zero_f32(), S::div(a, S::select(none, S::set1(1.0f), b)));
  }

  FEWBIT_INLINE F32 half(F32 x) {
    uint16_t halves[kLanes];
    S::store_f16(halves, x);
    return S::load_f16(halves);
  }

  FEWBIT_INLINE F32 whole(F32 x, float low, float high) {
    return S::convert(S::round(S::max(S::min(x, S::set1(high)), S::set1(low))));
  }

  FEWBIT_INLINE F32 step_of(F32 wanted, F32 unit, StepRange range) {
    return whole(ratio(wanted, unit), range.low, range.high);
  }

  // What the outermost of a range of steps is divided into: it, the one before it, and so on.
  FEWBIT_INLINE float outermost(StepRange range, int k) {
    const auto inwards = static_cast<float>(k);
    return -range.low > range.high ? range.low + inwards : range.high - inwards;
  }

  // The one of larger magnitude; the first of equals.
  FEWBIT_INLINE F32 longer(F32 a, F32 b) { return S::select(S::less(S::abs(a), S::abs(b)), b, a); }
};

}  // namespace fewbit
