#include "linear/arena.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fewbit {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kBlock = size_t{1} << 26;  // address space; untouched pages take no memory

size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::shared_ptr<uint8_t> new_block(size_t size) {
  auto* block = static_cast<uint8_t*>(std::aligned_alloc(kHugePage, size));
  if (!block) throw std::bad_alloc();
#if defined(__linux__)
  // Best effort: without huge pages it is slower and nothing else.
  madvise(block, size, MADV_HUGEPAGE);
#endif
  return {block, [](uint8_t* p) { std::free(p); }};
}

}  // namespace

std::shared_ptr<uint8_t> PackedArena::take(size_t bytes) {
  const std::lock_guard<std::mutex> turn(turn_);
  const size_t needed = whole(bytes, kLine);
  if (size_ - used_ < needed) {
    const size_t size = std::max(kBlock, whole(needed, kHugePage));
    block_ = new_block(size);
    size_ = size;
    used_ = 0;
  }
  std::shared_ptr<uint8_t> part(block_, block_.get() + used_);
  used_ += needed;
  return part;
}

}  // namespace fewbit
