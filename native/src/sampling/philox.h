// Random numbers keyed by what they are for: Philox4x64-10 (Salmon et al., SC 2011), the twin of
// src/fewbit/keyed_random.py.
#pragma once

#include <array>
#include <cstdint>

namespace fewbit {

using PhiloxWords = std::array<uint64_t, 4>;

inline PhiloxWords philox(PhiloxWords counter, uint64_t key0, uint64_t key1) {
  using Wide = unsigned __int128;
  for (int round = 0; round < 10; ++round) {
    const Wide product0 = Wide{0xD2E7470EE14C6C93u} * counter[0];
    const Wide product1 = Wide{0xCA5A826395121157u} * counter[2];
    counter = {
        static_cast<uint64_t>(product1 >> 64) ^ counter[1] ^ key0, static_cast<uint64_t>(product1),
        static_cast<uint64_t>(product0 >> 64) ^ counter[3] ^ key1, static_cast<uint64_t>(product0)};
    key0 += 0x9E3779B97F4A7C15u;
    key1 += 0xBB67AE8584CAA73Bu;
  }
  return counter;
}

// A double in [0, 1) with 53 random bits. `start` tells blocks over the same position apart.
inline double keyed_uniform(uint64_t seed, uint64_t sample, uint64_t position, uint64_t purpose,
                            uint64_t start = 0) {
  const uint64_t word = philox({0, position, sample, start}, seed, purpose)[0];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace fewbit
