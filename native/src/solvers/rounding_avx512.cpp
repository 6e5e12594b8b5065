#include "simd/avx512.h"
#include "solvers/kernels_impl.h"

namespace fewbit {

extern const RoundingKernels kAvx512RoundingKernels;
const RoundingKernels kAvx512RoundingKernels = make_rounding_kernels<Avx512>();

}  // namespace fewbit
