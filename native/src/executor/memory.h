// Bytes aligned for vectors, not initialised: what is never touched takes no memory. From 2 MiB on
// they are offered to the kernel for huge pages, which spares a long stream its address misses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace fewbit {

struct AlignedDelete {
  std::align_val_t alignment = std::align_val_t{64};
  void operator()(uint8_t* data) const { ::operator delete(data, alignment); }
};

class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(size_t size);

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<uint8_t, AlignedDelete> data_;
  size_t size_ = 0;
};

// At least so many bytes for `Owner`'s work on this thread, whatever lies in them. They stay with
// the thread, since fresh memory costs more than much of what is done in it; owners may nest.
template <class Owner>
uint8_t* scratch(size_t bytes) {
  static thread_local Bytes memory;
  if (memory.size() < bytes) memory = Bytes(bytes);
  return memory.data();
}

}  // namespace fewbit
