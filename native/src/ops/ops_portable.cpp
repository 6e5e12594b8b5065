#include "ops/table.h"
#include "simd/portable.h"

namespace fewbit {

const OpKernels kOpsPortable =
    make_op_kernels<Portable, RegisterShape<1, 1>, RegisterShape<1, 2>>();

}  // namespace fewbit
