#include "simd/portable.h"
#include "simd/probes_impl.h"

namespace fewbit {

extern const SimdProbes kPortableProbes = ProbesOf<Portable>::table;

}  // namespace fewbit
