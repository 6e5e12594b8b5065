#include "ops/table.h"
#include "simd/avx512.h"

namespace fewbit {

const OpKernels kOpsAvx512 = make_op_kernels<Avx512, RegisterShape<6, 4>, RegisterShape<6, 4>>();

}  // namespace fewbit
