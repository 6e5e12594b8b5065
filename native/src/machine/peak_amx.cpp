// Tiles at their full depth of 64 inputs, four products in flight: what AMX can do at most. The
// kernels stop every 32 inputs for a scale, and so cannot reach more than a part of it.
#include <immintrin.h>

#include <cstdint>

namespace fewbit {

namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int64_t kOperations = int64_t{4} * 2 * 16 * 16 * 64;

}  // namespace

extern int64_t peak_chain_amx(int64_t steps) {
  TileConfig config;
  // The intrinsic claims to read 8 bytes only, and the compiler would drop the others.
  __asm__ volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
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
