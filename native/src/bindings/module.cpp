// The Python module fewbit._native.
#include "bindings/bindings.h"

NB_MODULE(_native, module) {
  module.doc() = "fewbit's native core; used through fewbit.runtime and fewbit.sampling only";
  fewbit::bind_linear(module);
  fewbit::bind_packed_file(module);
  fewbit::bind_split(module);
  fewbit::bind_weight_only(module);
  fewbit::bind_executor(module);
  fewbit::bind_sampling(module);
  fewbit::bind_gram(module);
  fewbit::bind_machine(module);
  fewbit::bind_rounding(module);
  fewbit::bind_grids(module);
  fewbit::bind_training(module);
}
