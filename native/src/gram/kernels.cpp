// Which kernels of X^T X this CPU has.
#include "gram/gram.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fewbit {

extern const GramKernels kPortableGram;
#if defined(__x86_64__)
extern const GramKernels kAvx2Gram;
extern const GramKernels kAvx512Gram;
extern const GramKernels kAmxGram;
#elif defined(__aarch64__)
extern const GramKernels kNeonGram;
#endif

// CPUID 7.0: EDX bit 22 is amx-bf16. CPUID 7.1: EAX bit 5 is avx512-bf16.
bool has_bfloat_tiles() {
#if defined(__x86_64__)
  static const bool available = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || ((d >> 22) & 1u) == 0) return false;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && ((a >> 5) & 1u) == 1;
  }();
  return available;
#else
  return false;
#endif
}

const GramKernels& gram_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Gram;
    case Isa::kAvx512Vnni:
      return kAvx512Gram;
    case Isa::kAmx:
      return has_bfloat_tiles() ? kAmxGram : kAvx512Gram;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonGram;
#endif
    default:
      return kPortableGram;
  }
}

const GramKernels& float_gram_kernels(Isa isa) {
  return gram_kernels(isa == Isa::kAmx ? Isa::kAvx512Vnni : isa);
}

}  // namespace fewbit
