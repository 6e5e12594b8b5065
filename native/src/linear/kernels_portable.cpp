#include "linear/table.h"
#include "simd/portable.h"

namespace fewbit {

extern const LinearKernels kPortableKernels = kKernels<Portable>;

}  // namespace fewbit
