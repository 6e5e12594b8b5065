#include "simd/avx2.h"
#include "solvers/kernels_impl.h"

namespace fewbit {

extern const RoundingKernels kAvx2RoundingKernels;
const RoundingKernels kAvx2RoundingKernels = make_rounding_kernels<Avx2>();

}  // namespace fewbit
