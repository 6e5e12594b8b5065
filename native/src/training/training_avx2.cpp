#include "simd/avx2.h"
#include "training/training_impl.h"

namespace fewbit {

extern const TrainingKernels kAvx2TrainingKernels;
const TrainingKernels kAvx2TrainingKernels = make_training_kernels<Avx2>();

}  // namespace fewbit
