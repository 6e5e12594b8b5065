// The table of one instruction set, from the templates.
#pragma once

#include "linear/blocked.h"
#include "linear/float_kernels.h"
#include "linear/kernels.h"
#include "linear/quantize.h"

namespace fewbit {

// Calls f.template operator()<C, K>() if that is the matrix's format.
template <Codes C, Scaling K, class F>
FEWBIT_INLINE bool if_format(const PackedMatrix& w, F& f) {
  if (w.codes != C || w.scaling != K) return false;
  f.template operator()<C, K>();
  return true;
}

template <Codes C, class F>
FEWBIT_INLINE bool if_affine(const PackedMatrix& w, F& f) {
  return if_format<C, Scaling::kSymmetric>(w, f) || if_format<C, Scaling::kAsymmetric>(w, f);
}

template <Codes C, class F>
FEWBIT_INLINE bool if_minima(const PackedMatrix& w, F& f) {
  return if_format<C, Scaling::kMinimum>(w, f) || if_format<C, Scaling::kTwoLevel>(w, f);
}

// Calls f.template operator()<C, K>() for the matrix's format, one of all that kernels read.
template <class F>
FEWBIT_INLINE bool with_integer_format(const PackedMatrix& w, F&& f) {
  return if_affine<Codes::kBits4>(w, f) || if_minima<Codes::kBits4>(w, f) ||
         if_affine<Codes::kBits8>(w, f) || if_format<Codes::kBits6, Scaling::kSigned16>(w, f) ||
         if_affine<Codes::kBits5>(w, f) || if_minima<Codes::kBits5>(w, f) ||
         if_affine<Codes::kBits6>(w, f) || if_affine<Codes::kBits2>(w, f) ||
         if_affine<Codes::kBits3>(w, f) || if_affine<Codes::kBits7>(w, f) ||
         if_format<Codes::kBits2, Scaling::kTwoLevel16>(w, f) ||
         if_format<Codes::kBits3, Scaling::kSixBit16>(w, f) ||
         if_format<Codes::kNested8, Scaling::kSymmetric>(w, f) ||
         if_format<Codes::kBits4, Scaling::kHigh>(w, f) ||
         if_format<Codes::kIq4, Scaling::kSymmetric>(w, f) ||
         if_format<Codes::kIq4, Scaling::kSixBit32>(w, f) ||
         if_format<Codes::kE2m1, Scaling::kExponent>(w, f);
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
    case Codes::kF8E4m3:
      return run.template operator()<Codes::kF8E4m3>();
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
inline constexpr LinearKernels kKernels{quantize_row<S>, quantize_row_with<S>, scale_of_row<S>,
                                        multiply<S>};

}  // namespace fewbit
