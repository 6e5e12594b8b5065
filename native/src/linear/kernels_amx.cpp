#include "linear/linear.h"

namespace fewbit {

extern const LinearKernels kAvx512Kernels;
extern const LinearKernels kAmxKernels = {kAvx512Kernels.quantize, kAvx512Kernels.multiply};

}  // namespace fewbit
