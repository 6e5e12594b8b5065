#include "machine/peak_impl.h"
#include "simd/avx2.h"

namespace fewbit {

extern int64_t peak_chain_avx2(int64_t steps) { return dot4_chain<Avx2>(steps); }

}  // namespace fewbit
