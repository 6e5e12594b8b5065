#include "machine/peak_impl.h"
#include "simd/avx512.h"

namespace fewbit {

extern int64_t peak_chain_avx512(int64_t steps) { return dot4_chain<Avx512>(steps); }

}  // namespace fewbit
