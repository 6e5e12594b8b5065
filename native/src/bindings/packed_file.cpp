// The file of packed matrices for fewbit.runtime.packed_file.
#include "linear/packed_file.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "linear/layout.h"
#include "linear/repack.h"

namespace nb = nanobind;

namespace fewbit {

namespace {

void open(PackedFile* self, const std::string& path) {
  try {
    new (self) PackedFile(path);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
  }
}

void require_inside(const PackedFile& file, size_t offset, size_t size) {
  if (offset > file.size() || size > file.size() - offset) {
    throw std::invalid_argument("the range ends beyond the file");
  }
}

std::vector<uint64_t> checksums_of(const PackedFile& file,
                                   const std::vector<std::pair<size_t, size_t>>& ranges,
                                   int threads) {
  std::vector<ByteRange> inside;
  for (const auto& [offset, size] : ranges) {
    require_inside(file, offset, size);
    inside.push_back({offset, size});
  }
  nb::gil_scoped_release release;
  return file.checksums(inside, threads);
}

OwnedMatrix matrix_at(const PackedFile& file, size_t offset, const std::string& source,
                      int64_t rows, int64_t columns, int bits, int64_t group, bool asymmetric) {
  PackedMatrix matrix =
      packed_shape(source_named(source), rows, columns, bits, group, asymmetric, PackedAs::kPlain);
  if (offset % kVector) throw std::invalid_argument("a matrix begins at a multiple of 64 bytes");
  require_inside(file, offset, matrix_bytes(matrix));
  OwnedMatrix owned{file.from(offset), matrix};
  owned.matrix.data = owned.memory.get();
  return owned;
}

}  // namespace

void bind_packed_file(nb::module_& module) {
  using nb::arg;
  using nb::call_guard;
  using nb::gil_scoped_release;
  nb::class_<PackedFile>(module, "PackedFile", "A mapped file of packed matrices.")
      .def("__init__", &open, arg("path"))
      .def("populate", &PackedFile::populate, call_guard<gil_scoped_release>())
      .def("copy", &PackedFile::copy, arg("threads"), call_guard<gil_scoped_release>())
      .def("checksums", &checksums_of, arg("ranges"), arg("threads"))
      .def("matrix", &matrix_at, arg("offset"), arg("source"), arg("rows"), arg("columns"),
           arg("bits"), arg("group"), arg("asymmetric"))
      .def(
          "read",
          [](const PackedFile& file, size_t offset, size_t size) {
            require_inside(file, offset, size);
            return nb::bytes(file.data() + offset, size);
          },
          arg("offset"), arg("size"))
      .def_prop_ro("address",
                   [](const PackedFile& file) { return reinterpret_cast<uintptr_t>(file.data()); })
      .def_prop_ro("size", &PackedFile::size);
}

}  // namespace fewbit
