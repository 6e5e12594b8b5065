#include "gram/float_kernels.h"
#include "gram/moment_kernels.h"
#include "simd/portable.h"

namespace fewbit {

extern const GramKernels kPortableGram = {"f32/portable", kFloatPanelBytes, pack_floats,
                                          multiply_panels<Portable>, sum_moments<Portable>};

}  // namespace fewbit
