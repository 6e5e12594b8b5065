#include "simd/neon.h"
#include "simd/probes_impl.h"

namespace fewbit {

extern const SimdProbes kNeonProbes = ProbesOf<Neon>::table;

}  // namespace fewbit
