#include "gram/float_kernels.h"
#include "gram/moment_kernels.h"
#include "simd/avx512.h"

namespace fewbit {

extern const GramKernels kAvx512Gram = {"f32/avx512", kFloatPanelBytes, pack_floats,
                                        multiply_panels<Avx512>, sum_moments<Avx512>};

}  // namespace fewbit
