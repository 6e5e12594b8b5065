#include "simd/portable.h"
#include "training/training_impl.h"

namespace fewbit {

extern const TrainingKernels kPortableTrainingKernels;
const TrainingKernels kPortableTrainingKernels = make_training_kernels<Portable>();

}  // namespace fewbit
