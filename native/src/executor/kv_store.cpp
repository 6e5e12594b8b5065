#include "executor/kv_store.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

namespace fewbit {

KvStore::KvStore(const Program& program, int64_t pages)
    : pages_(pages), type_(program.cache), layers_(program.layers) {
  for (const Op& op : program.ops) {
    const auto* attention = std::get_if<AttentionOp>(&op.what);
    if (!attention) continue;
    Layer& layer = layers_[attention->layer];
    layer.offset = page_stride_;
    layer.kv_heads = attention->kv_heads;
    layer.head_dim = attention->head_dim;
    layer.values_offset = page_key_bytes(program.cache, attention->head_dim);
    layer.head_stride = layer.values_offset + page_value_bytes(program.cache, attention->head_dim);
    page_stride_ += layer.head_stride * attention->kv_heads;
  }
  if (page_stride_ > 0 && static_cast<size_t>(pages) > SIZE_MAX / 2 / page_stride_) {
    throw std::bad_alloc();
  }
  bytes_ = Bytes(page_stride_ * pages);
}

void KvStore::copy_page(int64_t from, int64_t to) {
  std::memcpy(bytes_.data() + to * page_stride_, page(from), page_stride_);
}

void KvStore::require_fit(const Program& program) const {
  bool fits = program.cache == type_ && program.layers == static_cast<int64_t>(layers_.size());
  for (const Op& op : program.ops) {
    const auto* attention = std::get_if<AttentionOp>(&op.what);
    if (!attention || !fits) continue;
    const Layer& layer = layers_[attention->layer];
    fits = layer.kv_heads == attention->kv_heads && layer.head_dim == attention->head_dim;
  }
  if (!fits) {
    throw std::invalid_argument("the program keeps keys and values otherwise than the store does.");
  }
}

}  // namespace fewbit
