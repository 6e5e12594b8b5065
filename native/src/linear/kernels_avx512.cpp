#include "linear/table.h"
#include "simd/avx512.h"

namespace fewbit {

extern const LinearKernels kAvx512Kernels = kKernels<Avx512>;

}  // namespace fewbit
