#include "bindings/bindings.h"

namespace fewbit {

void bind_linear(nanobind::module_& module) { (void)module; }

}  // namespace fewbit
