// Memory for packed matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace fewbit {

// Cuts matrices from large blocks that are offered to the kernel for huge pages. A layer's
// matrices are smaller than a huge page, and a stream through pages of 4 KiB misses the address
// cache at every one of them: on SmolLM2-135M that made a step of one row 1.45 times as long.
class PackedArena {
 public:
  // Memory aligned to 64 bytes, not initialized; the block lives as long as anything cut from it.
  // May be called from several threads.
  std::shared_ptr<uint8_t> take(size_t bytes);

 private:
  std::mutex turn_;
  std::shared_ptr<uint8_t> block_;
  size_t used_ = 0;
  size_t size_ = 0;
};

}  // namespace fewbit
