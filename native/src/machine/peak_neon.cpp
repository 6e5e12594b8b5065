#include "machine/peak_impl.h"
#include "simd/neon.h"

namespace fewbit {

extern int64_t peak_chain_neon(int64_t steps) { return dot4_chain<Neon>(steps); }

}  // namespace fewbit
