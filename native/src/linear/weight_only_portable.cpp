#include "linear/weight_only.h"
#include "simd/portable.h"

namespace fewbit {

extern const WeightOnlyKernels kPortableWeightOnly = kWeightOnly<Portable>;

}  // namespace fewbit
