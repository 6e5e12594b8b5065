// A file of packed matrices, mapped into memory rather than read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fewbit {

struct ByteRange {
  size_t offset;
  size_t size;
};

// The bytes of a file, read-only, for as long as anything taken from it lives. The file lies at an
// address that is a multiple of 2 MiB and is offered to the system for huge pages; whether its file
// system has them is the system's affair (`copy` gives them everywhere).
class PackedFile {
 public:
  // Throws std::system_error where the file cannot be opened or mapped.
  explicit PackedFile(const std::string& path);

  size_t size() const { return size_; }
  const uint8_t* data() const { return bytes_.get(); }

  // The memory from `offset` on, which the caller has checked to be inside.
  std::shared_ptr<uint8_t> from(size_t offset) const;

  // Makes every page present, so that none is waited for later. False where the file does not hold
  // what it held when it was opened, or cannot be read.
  bool populate() const;

  // The same bytes in memory of their own, on huge pages where the system has any.
  PackedFile copy(int threads) const;

  // The checksum of each range, which the caller has checked to be inside.
  std::vector<uint64_t> checksums(const std::vector<ByteRange>& ranges, int threads) const;

 private:
  PackedFile(std::shared_ptr<uint8_t> bytes, size_t size) : bytes_(std::move(bytes)), size_(size) {}

  std::shared_ptr<uint8_t> bytes_;
  size_t size_ = 0;
};

// A number that differs wherever one stretch of 8 bytes does, and in all likelihood wherever more
// do: a guard against damage, not against an attacker.
uint64_t checksum(const uint8_t* bytes, size_t size);

}  // namespace fewbit
