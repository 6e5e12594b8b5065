// Tiles at their full depth of 64 inputs, four products in flight: what AMX can do at most. The
// kernels stop every 32 inputs for a scale, and so cannot reach more than a part of it.
#include <immintrin.h>

#include <cstdint>

#include "simd/tiles.h"

namespace fewbit {

namespace {

constexpr int64_t kOperations = int64_t{4} * 2 * 16 * 16 * 64;

}  // namespace

extern int64_t peak_chain_amx(int64_t steps) {
  configure_whole_tiles();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return steps * kOperations;
}

}  // namespace fewbit
