#include "simd/avx512.h"
#include "simd/probes_impl.h"

namespace fewbit {

extern const SimdProbes kAvx512Probes = ProbesOf<Avx512>::table;

}  // namespace fewbit
