#include "ops/table.h"
#include "simd/neon.h"

namespace fewbit {

const OpKernels kOpsNeon = make_op_kernels<Neon, RegisterShape<4, 1>, RegisterShape<2, 2>>();

}  // namespace fewbit
