// The table of one instruction set, from the templates.
#pragma once

#include "linear/blocked.h"
#include "linear/float_kernels.h"
#include "linear/kernels.h"
#include "linear/quantize.h"

namespace fewbit {

// Calls f.template operator()<C, K>() for the matrix's format.
template <class F>
FEWBIT_INLINE void with_integer_format(const PackedMatrix& w, F&& f) {
  const auto with_affine = [&]<Codes C>() {
    if (w.scaling == Scaling::kSymmetric) return f.template operator()<C, Scaling::kSymmetric>();
    f.template operator()<C, Scaling::kAsymmetric>();
  };
  const auto with_minima = [&]<Codes C>() {
    if (w.scaling == Scaling::kMinimum) return f.template operator()<C, Scaling::kMinimum>();
    if (w.scaling == Scaling::kTwoLevel) return f.template operator()<C, Scaling::kTwoLevel>();
    with_affine.template operator()<C>();
  };
  switch (w.codes) {
    case Codes::kBits4:
      return with_minima.template operator()<Codes::kBits4>();
    case Codes::kBits5:
      return with_minima.template operator()<Codes::kBits5>();
    case Codes::kBits6:
      if (w.scaling == Scaling::kSigned16) {
        return f.template operator()<Codes::kBits6, Scaling::kSigned16>();
      }
      return with_affine.template operator()<Codes::kBits6>();
    default:
      return with_affine.template operator()<Codes::kBits8>();
  }
}

template <class S>
void multiply_floats(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                     const Activations& a, int64_t row_begin, int64_t row_end, const float* bias,
                     float* out, int64_t out_stride) {
  const auto run = [&]<Codes C>() {
    multiply_float<S, C>(w, tile_begin, tile_end, a, row_begin, row_end, bias, out, out_stride);
  };
  switch (w.codes) {
    case Codes::kF32:
      return run.template operator()<Codes::kF32>();
    case Codes::kF16:
      return run.template operator()<Codes::kF16>();
    default:
      return run.template operator()<Codes::kBf16>();
  }
}

template <class S>
void multiply(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const Activations& a,
              int64_t row_begin, int64_t row_end, const float* bias, float* out,
              int64_t out_stride) {
  if (w.is_float()) {
    return multiply_floats<S>(w, tile_begin, tile_end, a, row_begin, row_end, bias, out,
                              out_stride);
  }
  with_integer_format(w, [&]<Codes C, Scaling K>() {
    if constexpr (S::kRegisters > 0) {
      if (row_end - row_begin > 2 * kFewRows<S>) {
        return multiply_blocked<S, C, K>(w, tile_begin, tile_end, a, row_begin, row_end, bias, out,
                                         out_stride);
      }
    }
    multiply_few<S, C, K>(w, tile_begin, tile_end, a, row_begin, row_end, bias, out, out_stride);
  });
}

template <class S>
inline constexpr LinearKernels kKernels{quantize_row<S>, multiply<S>};

}  // namespace fewbit
