// The bytes of keys and values: pages of 64 positions. A page holds those of all layers together,
// so the store grows by whole huge pages as sequences do.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "executor/memory.h"
#include "executor/program.h"
#include "ops/ops.h"

namespace fewbit {

class KvStore {
 public:
  KvStore(const Program& program, int64_t pages);

  // Throws std::invalid_argument where a program keeps its keys and values otherwise than the one
  // that the store was made for.
  void require_fit(const Program& program) const;

  // Held during a step, by any executor over this store.
  std::mutex& turn() { return turn_; }

  int64_t pages() const { return pages_; }
  size_t bytes() const { return bytes_.size(); }

  // Where a page's keys of one key head start; its values start `values_offset` bytes later, the
  // next page `page_stride` bytes later. The layout inside is that of `Attend`.
  uint8_t* head(int layer, int64_t page, int64_t kv_head) const {
    const Layer& at = layers_[layer];
    return bytes_.data() + page * page_stride_ + at.offset + kv_head * at.head_stride;
  }
  const uint8_t* page(int64_t page) const { return bytes_.data() + page * page_stride_; }
  void copy_page(int64_t from, int64_t to);
  size_t page_stride() const { return page_stride_; }
  size_t values_offset(int layer) const { return layers_[layer].values_offset; }

 private:
  struct Layer {
    size_t offset = 0;
    size_t head_stride = 0;
    size_t values_offset = 0;
    int64_t kv_heads = 0;
    int64_t head_dim = 0;
  };

  int64_t pages_;
  size_t page_stride_ = 0;
  CacheType type_;
  std::vector<Layer> layers_;
  Bytes bytes_;
  std::mutex turn_;
};

}  // namespace fewbit
