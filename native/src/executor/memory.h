// Bytes aligned for vectors, not initialised: pages that are never touched take no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace fewbit {

class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(size_t size)
      : data_(static_cast<uint8_t*>(::operator new(size ? size : 1, kAlign))), size_(size) {}

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(uint8_t* data) const { ::operator delete(data, kAlign); }
  };
  std::unique_ptr<uint8_t[], Delete> data_;
  size_t size_ = 0;
};

}  // namespace fewbit
