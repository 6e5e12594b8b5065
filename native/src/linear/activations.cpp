// Where the parts of quantized activations lie in one block of memory.
#include "linear/linear.h"
#include "linear/split.h"

namespace fewbit {

namespace {

constexpr size_t kLine = 64;

size_t whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

size_t activation_bytes(int64_t rows, int64_t columns) {
  const auto slots = static_cast<size_t>(rows * (columns / kGroup));
  return whole_lines(kGroup * slots) + 3 * whole_lines(4 * slots) + whole_lines(8 * slots);
}

Activations activations_in(void* memory, int64_t rows, int64_t columns, float* values) {
  Activations a{rows, columns, values, nullptr, nullptr, nullptr, nullptr, nullptr};
  const auto slots = static_cast<size_t>(rows * a.runs());
  auto* next = static_cast<uint8_t*>(memory);
  const auto take = [&next](size_t bytes) {
    uint8_t* part = next;
    next += whole_lines(bytes);
    return part;
  };
  a.q = reinterpret_cast<int8_t*>(take(kGroup * slots));
  a.scales = reinterpret_cast<float*>(take(4 * slots));
  a.weighted = reinterpret_cast<float*>(take(4 * slots));
  a.centre = reinterpret_cast<int32_t*>(take(4 * slots));
  a.centre16 = reinterpret_cast<int32_t*>(take(8 * slots));
  return a;
}

size_t bfloat_bytes(int64_t rows, int64_t columns) {
  const auto values = static_cast<size_t>(rows * columns);
  return whole_lines(4 * values) + whole_lines(4 * values / (kGroup / 2));
}

BfloatActivations bfloat_in(void* memory, int64_t rows, int64_t columns) {
  auto* values = static_cast<float*>(memory);
  const size_t bytes = whole_lines(4 * static_cast<size_t>(rows * columns));
  return {rows, columns, values, values + bytes / 4};
}

size_t split_bytes(int64_t rows, int64_t columns) {
  const SplitActivations a{rows, columns, nullptr};
  return static_cast<size_t>((rows + kRowBlock - 1) / kRowBlock * a.runs()) * kPieces * kPieceBytes;
}

}  // namespace fewbit
