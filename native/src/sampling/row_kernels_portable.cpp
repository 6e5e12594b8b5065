#include "sampling/row_kernels_impl.h"
#include "simd/portable.h"

namespace fewbit {

extern const RowKernels kPortableRowKernels;
const RowKernels kPortableRowKernels = make_row_kernels<Portable>();

}  // namespace fewbit
