#include "bindings/bindings.h"

namespace fewbit {

void bind_executor(nanobind::module_& module) { (void)module; }

}  // namespace fewbit
