#include "solvers/rounding.h"

#include <initializer_list>

namespace fewbit {

extern const RoundingKernels kPortableRoundingKernels;
#if defined(__x86_64__)
extern const RoundingKernels kAvx2RoundingKernels;
extern const RoundingKernels kAvx512RoundingKernels;
#elif defined(__aarch64__)
extern const RoundingKernels kNeonRoundingKernels;
#endif

const RoundingKernels& rounding_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2RoundingKernels;
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kAvx512RoundingKernels;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonRoundingKernels;
#endif
    default:
      return kPortableRoundingKernels;
  }
}

Isa best_rounding_isa() {
  for (const Isa isa : {Isa::kAvx512Vnni, Isa::kAvx2, Isa::kNeon})
    if (isa_available(isa)) return isa;
  return Isa::kPortable;
}

}  // namespace fewbit
