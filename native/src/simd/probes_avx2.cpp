#include "simd/avx2.h"
#include "simd/probes_impl.h"

namespace fewbit {

extern const SimdProbes kAvx2Probes = ProbesOf<Avx2>::table;

}  // namespace fewbit
