#include "ops/ops.h"

namespace fewbit {

const OpKernels& op_kernels(Isa isa) {
#if defined(__x86_64__) || defined(_M_X64)
  switch (isa) {
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kOpsAvx512;
    case Isa::kAvx2:
      return kOpsAvx2;
    case Isa::kPortable:
      break;
  }
#else
  (void)isa;
#endif
  return kOpsPortable;
}

size_t attend_scratch_floats(int64_t head_dim) {
  const int64_t width = (head_dim + 15) / 16 * 16;
  const int64_t per_query = kKeyBlock + 2 * width + 4;
  return static_cast<size_t>(kMaxQueries * per_query + kPage * (head_dim + width) + 64);
}

}  // namespace fewbit
