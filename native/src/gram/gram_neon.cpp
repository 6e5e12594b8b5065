#include "gram/float_kernels.h"
#include "gram/moment_kernels.h"
#include "simd/neon.h"

namespace fewbit {

extern const GramKernels kNeonGram = {"f32/neon", kFloatPanelBytes, pack_floats,
                                      multiply_panels<Neon>, sum_moments<Neon>};

}  // namespace fewbit
