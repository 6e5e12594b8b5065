#include "simd/neon.h"
#include "training/training_impl.h"

namespace fewbit {

extern const TrainingKernels kNeonTrainingKernels;
const TrainingKernels kNeonTrainingKernels = make_training_kernels<Neon>();

}  // namespace fewbit
