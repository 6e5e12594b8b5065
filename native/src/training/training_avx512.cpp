#include "simd/avx512.h"
#include "training/training_impl.h"

namespace fewbit {

extern const TrainingKernels kAvx512TrainingKernels;
const TrainingKernels kAvx512TrainingKernels = make_training_kernels<Avx512>();

}  // namespace fewbit
