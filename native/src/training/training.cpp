#include "training/training.h"

namespace fewbit {

extern const TrainingKernels kPortableTrainingKernels;
#if defined(__x86_64__)
extern const TrainingKernels kAvx2TrainingKernels;
extern const TrainingKernels kAvx512TrainingKernels;
#elif defined(__aarch64__)
extern const TrainingKernels kNeonTrainingKernels;
#endif

const TrainingKernels& training_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2TrainingKernels;
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kAvx512TrainingKernels;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonTrainingKernels;
#endif
    default:
      return kPortableTrainingKernels;
  }
}

}  // namespace fewbit
