#include "linear/table.h"
#include "simd/avx2.h"

namespace fewbit {

extern const LinearKernels kAvx2Kernels = kKernels<Avx2>;

}  // namespace fewbit
