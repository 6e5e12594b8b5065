#include "bindings/bindings.h"

namespace fewbit {

void bind_sampling(nanobind::module_& module) { (void)module; }

}  // namespace fewbit
