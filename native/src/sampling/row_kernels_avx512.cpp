#include "sampling/row_kernels_impl.h"
#include "simd/avx512.h"

namespace fewbit {

extern const RowKernels kAvx512RowKernels;
const RowKernels kAvx512RowKernels = make_row_kernels<Avx512>();

}  // namespace fewbit
