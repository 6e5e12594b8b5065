#include "sampling/row_kernels_impl.h"
#include "simd/neon.h"

namespace fewbit {

extern const RowKernels kNeonRowKernels;
const RowKernels kNeonRowKernels = make_row_kernels<Neon>();

}  // namespace fewbit
