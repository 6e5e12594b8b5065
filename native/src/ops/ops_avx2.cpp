#include "ops/table.h"
#include "simd/avx2.h"

namespace fewbit {

const OpKernels kOpsAvx2 = make_op_kernels<Avx2, RegisterShape<4, 1>, RegisterShape<2, 2>>();

}  // namespace fewbit
