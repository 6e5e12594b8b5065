// Asking for weights that are streamed from memory.
#pragma once

#include <cstdint>

#include "simd/simd.h"

namespace fewbit {

// How far ahead of its use a weight is asked for: into the second cache, and then from there into
// the first. Asked straight into the first, a stream from memory holds that cache's few fill
// buffers until its data comes: q4_k at 9.7 GB/s where one thread can read 14.2, and 14.4 so. The
// requests stand between the products: all of a run's at its start made four rows cost 1.36 instead
// of 1.17.
inline constexpr int kStreamAhead = 4096;
inline constexpr int kNearAhead = 2048;

template <class S>
FEWBIT_INLINE void prefetch_weights(const uint8_t* p) {
  S::prefetch_stream(p + kStreamAhead);
  S::prefetch(p + kNearAhead);
}

}  // namespace fewbit
