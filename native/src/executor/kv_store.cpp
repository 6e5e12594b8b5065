#include "executor/kv_store.h"

#include <cstdint>
#include <new>

#include "simd/simd.h"

namespace fewbit {

KvStore::KvStore(const Program& program, int64_t pages) : pages_(pages), layers_(program.layers) {
  const size_t element = program.cache == CacheType::kF16 ? 2 : 4;
  for (const Op& op : program.ops) {
    const auto* attention = std::get_if<AttentionOp>(&op.what);
    if (!attention) continue;
    const size_t head = attention->head_dim;
    const size_t padded = (head + kLanes - 1) / kLanes * kLanes;
    Layer& layer = layers_[attention->layer];
    layer.offset = page_stride_;
    layer.values_offset = kPage * head * element;
    layer.head_stride = layer.values_offset + kPage * padded * element;
    page_stride_ += layer.head_stride * attention->kv_heads;
  }
  if (page_stride_ > 0 && static_cast<size_t>(pages) > SIZE_MAX / 2 / page_stride_) {
    throw std::bad_alloc();
  }
  bytes_ = Bytes(page_stride_ * pages);
}

}  // namespace fewbit
