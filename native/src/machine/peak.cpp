#include "machine/peak.h"

#include <atomic>

#include "machine/together.h"

namespace fewbit {

int64_t peak_chain_portable(int64_t steps);
#if defined(__x86_64__)
int64_t peak_chain_avx2(int64_t steps);
int64_t peak_chain_avx512(int64_t steps);
int64_t peak_chain_amx(int64_t steps);
#elif defined(__aarch64__)
int64_t peak_chain_neon(int64_t steps);
#endif

PeakChain peak_chain(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return peak_chain_avx2;
    case Isa::kAvx512Vnni:
      return peak_chain_avx512;
    case Isa::kAmx:
      return peak_chain_amx;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return peak_chain_neon;
#endif
    default:
      return peak_chain_portable;
  }
}

double measure_peak(Isa isa, int threads, int64_t steps) {
  const PeakChain chain = peak_chain(isa);
  std::atomic<int64_t> operations{0};
  const double seconds = run_together(threads, [&](int) { operations += chain(steps); });
  return static_cast<double>(operations) / seconds;
}

}  // namespace fewbit
