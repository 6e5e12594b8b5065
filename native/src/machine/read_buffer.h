// Memory that several threads read as fast as they can: what streaming weights is held to.
#pragma once

#include <cstdint>
#include <memory>

#include "linear/linear.h"

namespace fewbit {

class ReadBuffer {
 public:
  // `bytes` rounded up to whole chunks, on huge pages where the system has them, written once by
  // all threads. Throws std::bad_alloc and std::system_error.
  ReadBuffer(int64_t bytes, int threads);

  int64_t bytes() const { return bytes_; }

  // Reads everything once with wide loads; threads take the next chunk when they are done with
  // one, so that a thread which loses its core for a moment does not decide alone.
  struct Reading {
    double seconds;
    int32_t sum;  // of all 32-bit words, wrapped: that every one was read
  };
  Reading read(Isa isa) const;

 private:
  int64_t bytes_;
  int threads_;
  std::shared_ptr<uint8_t> memory_;
};

}  // namespace fewbit
