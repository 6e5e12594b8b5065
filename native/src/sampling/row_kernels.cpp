#include "sampling/row_kernels.h"

#include <initializer_list>

namespace fewbit {

extern const RowKernels kPortableRowKernels;
#if defined(__x86_64__)
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;
#elif defined(__aarch64__)
extern const RowKernels kNeonRowKernels;
#endif

const RowKernels& row_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2RowKernels;
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kAvx512RowKernels;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonRowKernels;
#endif
    default:
      return kPortableRowKernels;
  }
}

const RowKernels& best_row_kernels() {
  for (const Isa isa : {Isa::kAvx512Vnni, Isa::kAvx2, Isa::kNeon})
    if (isa_available(isa)) return row_kernels(isa);
  return row_kernels(Isa::kPortable);
}

}  // namespace fewbit
