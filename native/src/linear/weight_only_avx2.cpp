#include "linear/weight_only.h"
#include "simd/avx2.h"

namespace fewbit {

extern const WeightOnlyKernels kAvx2WeightOnly = kWeightOnly<Avx2>;

}  // namespace fewbit
