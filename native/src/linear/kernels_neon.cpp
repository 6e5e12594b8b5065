#include "linear/table.h"
#include "simd/neon.h"

namespace fewbit {

extern const LinearKernels kNeonKernels = kKernels<Neon>;

}  // namespace fewbit
