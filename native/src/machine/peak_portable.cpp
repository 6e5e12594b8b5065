#include "machine/peak_impl.h"
#include "simd/portable.h"

namespace fewbit {

extern int64_t peak_chain_portable(int64_t steps) { return dot4_chain<Portable>(steps); }

}  // namespace fewbit
