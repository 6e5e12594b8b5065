#include "simd/neon.h"
#include "solvers/kernels_impl.h"

namespace fewbit {

extern const RoundingKernels kNeonRoundingKernels;
const RoundingKernels kNeonRoundingKernels = make_rounding_kernels<Neon>();

}  // namespace fewbit
