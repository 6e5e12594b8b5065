#include "sampling/row_kernels_impl.h"
#include "simd/avx2.h"

namespace fewbit {

extern const RowKernels kAvx2RowKernels;
const RowKernels kAvx2RowKernels = make_row_kernels<Avx2>();

}  // namespace fewbit
