// One function a part of the native core; module.cpp calls them all.
#pragma once

#include <nanobind/nanobind.h>

namespace fewbit {

void bind_linear(nanobind::module_& module);
void bind_executor(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);

}  // namespace fewbit
