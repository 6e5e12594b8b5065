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
    default:
      break;
  }
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return kOpsNeon;
#else
  (void)isa;
#endif
  return kOpsPortable;
}

namespace {

size_t integer_bytes(CacheType type, int64_t head_dim) {
  const int64_t codes = type == CacheType::kInt8 ? head_dim : head_dim / 2;
  return static_cast<size_t>(kPage * (codes + head_dim / kRun * 2));
}

size_t element_bytes(CacheType type) { return type == CacheType::kF32 ? 4 : 2; }

}  // namespace

size_t page_key_bytes(CacheType type, int64_t head_dim) {
  return is_integer(type) ? integer_bytes(type, head_dim) : kPage * head_dim * element_bytes(type);
}

size_t page_value_bytes(CacheType type, int64_t head_dim) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return is_integer(type) ? integer_bytes(type, head_dim) : kPage * padded * element_bytes(type);
}

size_t attend_scratch_floats(int64_t head_dim) {
  const int64_t width = (head_dim + 15) / 16 * 16;
  const int64_t codes = head_dim / 2 + 2 * (head_dim / kRun);
  const int64_t per_query = kKeyBlock + 2 * width + 4 + codes;
  const int64_t value_scales = kPage * (head_dim / kRun);
  return static_cast<size_t>(kMaxQueries * per_query + kPage * (head_dim + width) + value_scales +
                             64);
}

}  // namespace fewbit
