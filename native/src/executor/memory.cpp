#include "executor/memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fewbit {

namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kLine = 64;

}  // namespace

Bytes::Bytes(size_t size) : size_(size) {
  const bool huge = size >= kHugePage;
  const std::align_val_t alignment{huge ? kHugePage : kLine};
  auto* data = static_cast<uint8_t*>(::operator new(size ? size : kLine, alignment));
  data_ = std::unique_ptr<uint8_t, AlignedDelete>(data, AlignedDelete{alignment});
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // Best effort: without huge pages it is slower and nothing else.
  if (huge) madvise(data, size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
}

}  // namespace fewbit
