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

}  // namespace fewbit
