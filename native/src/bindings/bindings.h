// One function a part of the native core; module.cpp calls them all.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "linear/linear.h"
#include "linear/repack.h"

namespace fewbit {

void bind_linear(nanobind::module_& module);  // calls bind_simd
void bind_packed_file(nanobind::module_& module);
void bind_split(nanobind::module_& module);
void bind_weight_only(nanobind::module_& module);
void bind_simd(nanobind::module_& module);
void bind_executor(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);
void bind_gram(nanobind::module_& module);
void bind_machine(nanobind::module_& module);
void bind_rounding(nanobind::module_& module);
void bind_grids(nanobind::module_& module);
void bind_training(nanobind::module_& module);

// The instruction set of this name (`amx`, `avx512vnni`, `avx2`, `portable`); std::invalid_argument
// (a ValueError in Python) for an unknown name or one that this CPU lacks.
Isa isa_named(const std::string& name);

// The stored format of this name (a GGUF type, or `affine`); std::invalid_argument for an unknown
// one.
Source source_named(const std::string& name);

}  // namespace fewbit
