#include "linear/packed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>

#include "linear/arena.h"
#include "linear/spread.h"

namespace fewbit {

namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kPiece = size_t{1} << 20;  // what one thread takes at a time
constexpr size_t kLanes = 8;
constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd, so multiplying by it loses no bit

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0) throw std::system_error(errno, std::generic_category());
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }
  size_t size() const {
    struct stat found;
    if (fstat(number_, &found) != 0) throw std::system_error(errno, std::generic_category());
    return S_ISREG(found.st_mode) ? static_cast<size_t>(found.st_size) : 0;
  }

 private:
  int number_;
};

// Reserves address space with room to align, and puts the file at the first multiple of a huge
// page.
std::shared_ptr<uint8_t> map_aligned(const Descriptor& file, size_t size) {
  const size_t reserved = size + kHugePage;
  void* space = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  std::shared_ptr<void> holder(space, [reserved](void* start) { munmap(start, reserved); });
  const auto start = reinterpret_cast<uintptr_t>(space);
  auto* aligned = reinterpret_cast<uint8_t*>((start + kHugePage - 1) / kHugePage * kHugePage);
  const int flags = MAP_SHARED | MAP_FIXED;
  if (mmap(aligned, size, PROT_READ, flags, file.number(), 0) == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category());
  }
#if defined(MADV_HUGEPAGE)
  // Best effort: without huge pages it is slower and nothing else.
  madvise(aligned, size, MADV_HUGEPAGE);
#endif
  return {holder, aligned};
}

uint64_t mixed(uint64_t sum, uint64_t word) { return (sum ^ word) * kFactor; }

uint64_t piece_checksum(const uint8_t* bytes, size_t size) {
  uint64_t lanes[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = size + lane;
  size_t at = 0;
  for (; at + 8 * kLanes <= size; at += 8 * kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      uint64_t word;
      std::memcpy(&word, bytes + at + 8 * lane, 8);
      lanes[lane] = mixed(lanes[lane], word);
    }
  }
  for (; at < size; ++at) lanes[0] = mixed(lanes[0], bytes[at]);
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum = mixed(sum ^ (sum >> 29), lane);
  return sum;
}

int64_t pieces(size_t size) { return static_cast<int64_t>((size + kPiece - 1) / kPiece); }

}  // namespace

uint64_t checksum(const uint8_t* bytes, size_t size) {
  uint64_t sum = 0;
  for (size_t at = 0; at < size; at += kPiece) {
    sum = mixed(sum ^ (sum >> 29), piece_checksum(bytes + at, std::min(kPiece, size - at)));
  }
  return sum;
}

PackedFile::PackedFile(const std::string& path) {
  const Descriptor file(path);
  size_ = file.size();
  if (size_ == 0) throw std::system_error(EINVAL, std::generic_category());
  bytes_ = map_aligned(file, size_);
}

std::shared_ptr<uint8_t> PackedFile::from(size_t offset) const {
  return {bytes_, bytes_.get() + offset};
}

bool PackedFile::populate() const {
#if defined(MADV_POPULATE_READ)
  if (madvise(bytes_.get(), size_, MADV_POPULATE_READ) == 0) return true;
  return errno == EINVAL;  // a kernel before 5.14: pages come when they are looked at
#else
  return true;
#endif
}

PackedFile PackedFile::copy(int threads) const {
  PackedArena arena;
  const std::shared_ptr<uint8_t> target = arena.take(size_);
  spread(pieces(size_), threads, [&](int64_t i) {
    const size_t at = static_cast<size_t>(i) * kPiece;
    std::memcpy(target.get() + at, bytes_.get() + at, std::min(kPiece, size_ - at));
  });
  return {target, size_};
}

std::vector<uint64_t> PackedFile::checksums(const std::vector<ByteRange>& ranges,
                                            int threads) const {
  std::vector<uint64_t> sums(ranges.size());
  spread(std::ssize(ranges), threads,
         [&](int64_t i) { sums[i] = checksum(bytes_.get() + ranges[i].offset, ranges[i].size); });
  return sums;
}

}  // namespace fewbit
