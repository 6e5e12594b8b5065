#include "solvers/refine.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "executor/memory.h"

namespace fewbit {

namespace {

// Deals out parts of one piece of memory; without a piece it counts what they take.
class Parts {
 public:
  explicit Parts(uint8_t* memory) : memory_(memory) {}

  float* floats(int64_t rows) {
    return reinterpret_cast<float*>(bytes(static_cast<size_t>(rows) * sizeof(float)));
  }
  // 64 times `size` bytes.
  uint8_t* bytes(size_t size) {
    uint8_t* part = memory_ ? memory_ + taken_ : nullptr;
    taken_ += size * kRoundingRows;
    return part;
  }
  size_t taken() const { return taken_; }

 private:
  uint8_t* memory_;
  size_t taken_ = 0;
};

LaneGrid lane_grid(Parts& parts, const GridShape& shape, int64_t columns) {
  LaneGrid grid;
  grid.scale = parts.floats(columns / shape.block);
  grid.offset = parts.floats(columns / shape.block);
  grid.steps = parts.floats(columns / shape.group);
  grid.offset_steps = parts.floats(columns / shape.group);
  return grid;
}

LaneScales lane_scales(Parts& parts, int64_t groups) {
  LaneScales scales;
  scales.scale = parts.floats(groups);
  scales.offset = parts.floats(groups);
  scales.zero = parts.floats(groups);
  return scales;
}

RefineMemory divided(Parts& parts, const RefineTask& task) {
  const int64_t groups = task.span / task.shape.group;
  const int64_t unknowns = task.shape.free_offsets() ? 2 * groups : groups;
  RefineMemory memory;
  memory.codes = parts.bytes(static_cast<size_t>(task.columns));
  for (float** part : {&memory.weights, &memory.errors}) *part = parts.floats(task.columns);
  memory.grid = lane_grid(parts, task.shape, task.columns);
  memory.tried = lane_grid(parts, task.shape, task.span);
  memory.now = lane_scales(parts, groups);
  memory.then = lane_scales(parts, groups);
  for (float** part : {&memory.slopes, &memory.levels, &memory.moves, &memory.products})
    *part = parts.floats(task.span);
  memory.matrix = parts.floats(unknowns * unknowns);
  for (float** part : {&memory.right, &memory.solution, &memory.roots})
    *part = parts.floats(unknowns);
  return memory;
}

// For each column, [columns][groups of a span], the sums of H over the groups of its own span.
std::vector<float> group_sums(const RefineTask& task) {
  const int64_t width = task.span / task.shape.group;
  std::vector<float> sums(static_cast<size_t>(task.columns * width));
  for (int64_t k = 0; k < task.columns; ++k) {
    const int64_t first = k / task.span * task.span;
    const int64_t last = std::min(first + task.span, task.columns);
    float* here = sums.data() + k * width;
    for (int64_t j = first; j < last; ++j)
      here[(j - first) / task.shape.group] += task.gram[k * task.columns + j];
    here[(k - first) / task.shape.group] += task.added[k];
  }
  return sums;
}

}  // namespace

void refine_rows(const RefineTask& task, const StoredGrid& grid, double* changes, Isa isa,
                 ThreadPool& pool) {
  const RoundingKernels& kernels = rounding_kernels(isa);
  const std::vector<float> sums =
      task.shape.free_offsets() ? group_sums(task) : std::vector<float>{};
  Parts counted(nullptr);
  divided(counted, task);
  std::vector<Bytes> memories;
  for (int thread = 0; thread < pool.size(); ++thread) memories.emplace_back(counted.taken());
  std::atomic<int64_t> next{0};
  pool.run([&](int thread) {
    Parts parts(memories[static_cast<size_t>(thread)].data());
    const RefineMemory memory = divided(parts, task);
    for (int64_t row = next.fetch_add(kRoundingRows); row < task.rows;
         row = next.fetch_add(kRoundingRows))
      kernels.refine(task, sums.empty() ? nullptr : sums.data(), memory, grid, changes, row);
  });
}

}  // namespace fewbit
