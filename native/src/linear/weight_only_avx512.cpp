#include "linear/weight_only.h"
#include "simd/avx512.h"

namespace fewbit {

extern const WeightOnlyKernels kAvx512WeightOnly = kWeightOnly<Avx512>;

}  // namespace fewbit
