#include "simd/portable.h"
#include "solvers/kernels_impl.h"

namespace fewbit {

extern const RoundingKernels kPortableRoundingKernels;
const RoundingKernels kPortableRoundingKernels = make_rounding_kernels<Portable>();

}  // namespace fewbit
