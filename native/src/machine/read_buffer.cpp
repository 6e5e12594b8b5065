#include "machine/read_buffer.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "linear/arena.h"
#include "machine/together.h"
#include "simd/probes.h"

namespace fewbit {

namespace {

constexpr int64_t kChunk = int64_t{1} << 21;

// Hands every chunk of `bytes` to one of the threads; returns the seconds taken.
double each_chunk(int64_t bytes, int threads, const std::function<void(int64_t offset)>& act) {
  std::atomic<int64_t> next{0};
  return run_together(threads, [&](int) {
    for (int64_t at = next.fetch_add(kChunk); at < bytes; at = next.fetch_add(kChunk)) act(at);
  });
}

}  // namespace

ReadBuffer::ReadBuffer(int64_t bytes, int threads)
    : bytes_((bytes + kChunk - 1) / kChunk * kChunk),
      threads_(threads),
      memory_(PackedArena().take(static_cast<size_t>(bytes_))) {
  each_chunk(bytes_, threads_, [&](int64_t at) {
    // Words of 1: the sum of a chunk fits its lanes.
    std::fill_n(reinterpret_cast<int32_t*>(memory_.get() + at), kChunk / 4, 1);
  });
}

ReadBuffer::Reading ReadBuffer::read(Isa isa) const {
  const SimdProbes& probes = simd_probes(isa);
  std::atomic<int32_t> sum{0};
  const double seconds = each_chunk(
      bytes_, threads_, [&](int64_t at) { sum += probes.read(memory_.get() + at, kChunk); });
  return {seconds, sum};
}

}  // namespace fewbit
