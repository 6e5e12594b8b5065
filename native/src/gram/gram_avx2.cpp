#include "gram/float_kernels.h"
#include "gram/moment_kernels.h"
#include "simd/avx2.h"

namespace fewbit {

extern const GramKernels kAvx2Gram = {"f32/avx2", kFloatPanelBytes, pack_floats,
                                      multiply_panels<Avx2>, sum_moments<Avx2>};

}  // namespace fewbit
