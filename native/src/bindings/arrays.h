// NumPy arrays made in C++.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>

namespace fewbit {

// An uninitialized array that owns its memory.
template <class T, size_t N>
nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<N>> new_array(const size_t (&shape)[N]) {
  size_t size = 1;
  for (size_t extent : shape) size *= extent;
  T* memory = new T[size];
  nanobind::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<N>>(memory, N, shape, owner);
}

}  // namespace fewbit
