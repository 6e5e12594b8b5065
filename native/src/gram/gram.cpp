#include "gram/gram.h"

#include <algorithm>
#include <utility>

#include "executor/memory.h"
#include "executor/stage_walk.h"
#include "simd/simd.h"

namespace fewbit {

namespace {

// Blocks whose panels lie in memory together: a square of the matrix is read and written once for
// all of them.
constexpr int64_t kChunkBlocks = 4;

// Panels on a side of a unit of work: its panels are read from the second-level cache.
constexpr int64_t kGroupPanels = 2;

struct Block {
  int64_t begin, rows;
};

std::vector<Block> blocks_of(const std::vector<int64_t>& lengths) {
  std::vector<Block> blocks;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    for (int64_t done = 0; done < length; done += kGramRows) {
      blocks.push_back({start + done, std::min(kGramRows, length - done)});
    }
    start += length;
  }
  return blocks;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Two stages a chunk of blocks: its panels are packed, then squares of the matrix are added to.
class GramStages final : public Stages {
 public:
  GramStages(const GramInput& input, float* gram, const GramKernels& kernels)
      : input_(input),
        gram_(gram),
        kernels_(kernels),
        blocks_(blocks_of(input.lengths)),
        panels_(ceil_div(input.columns, kPanelColumns)),
        memory_(kernels.panel_bytes * static_cast<size_t>(panels_ * most_blocks())) {
    const int64_t groups = ceil_div(panels_, kGroupPanels);
    for (int64_t a = 0; a < groups; ++a) {
      for (int64_t b = a; b < groups; ++b) units_.emplace_back(a, b);
    }
  }

  int64_t count() const override { return 2 * ceil_div(block_count(), kChunkBlocks); }

  int64_t units(int64_t stage) const override {
    const int64_t in_chunk = std::min(kChunkBlocks, block_count() - first_block(stage));
    return stage % 2 == 0 ? panels_ * in_chunk : static_cast<int64_t>(units_.size());
  }

  void run(int64_t stage, int64_t unit, int) override {
    if (stage % 2 == 0) return pack(first_block(stage), unit);
    const auto [a, b] = units_[unit];
    const int64_t end = std::min(first_block(stage) + kChunkBlocks, block_count());
    for (int64_t j = kGroupPanels * b; j < std::min(kGroupPanels * (b + 1), panels_); ++j) {
      for (int64_t i = kGroupPanels * a; i < std::min(kGroupPanels * (a + 1), j + 1); ++i) {
        for (int64_t block = first_block(stage); block < end; ++block) add(block, i, j);
      }
    }
  }

 private:
  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t most_blocks() const { return std::min(kChunkBlocks, block_count()); }
  static int64_t first_block(int64_t stage) { return stage / 2 * kChunkBlocks; }
  int64_t columns_of(int64_t panel) const {
    return std::min(kPanelColumns, input_.columns - panel * kPanelColumns);
  }
  uint8_t* panel_at(int64_t block, int64_t panel) const {
    const int64_t index = block % kChunkBlocks * panels_ + panel;
    return memory_.data() + kernels_.panel_bytes * static_cast<size_t>(index);
  }

  void pack(int64_t first, int64_t unit) {
    const int64_t block = first + unit / panels_;
    const int64_t panel = unit % panels_;
    const float* x = input_.x + blocks_[block].begin * input_.columns + panel * kPanelColumns;
    kernels_.pack(x, input_.columns, blocks_[block].rows, columns_of(panel),
                  panel_at(block, panel));
  }

  void add(int64_t block, int64_t i, int64_t j) {
    float* square = gram_ + (i * input_.columns + j) * kPanelColumns;
    kernels_.multiply(panel_at(block, i), panel_at(block, j), blocks_[block].rows, columns_of(i),
                      columns_of(j), square, input_.columns);
  }

  const GramInput& input_;
  float* gram_;
  const GramKernels& kernels_;
  std::vector<Block> blocks_;
  int64_t panels_;
  Bytes memory_;
  std::vector<std::pair<int64_t, int64_t>> units_;  // groups of panels
};

// One stage of independent units.
template <class F>
class OneStage final : public Stages {
 public:
  OneStage(int64_t units, F f) : units_(units), f_(std::move(f)) {}
  int64_t count() const override { return 1; }
  int64_t units(int64_t) const override { return units_; }
  void run(int64_t, int64_t unit, int) override { f_(unit); }

 private:
  int64_t units_;
  F f_;
};

// Columns of a unit of work: the threads get equal ones.
int64_t moment_columns(int64_t columns, int threads) {
  const int64_t parts = ceil_div(ceil_div(columns, kMomentColumns), threads) * threads;
  return ceil_div(ceil_div(columns, parts), kLanes) * kLanes;
}

void walk(Stages& stages, ThreadPool& pool) {
  StageWalk walk(pool);
  walk.run(stages);
}

}  // namespace

void add_gram(const GramInput& input, float* gram, const GramKernels& kernels, ThreadPool& pool) {
  GramStages stages(input, gram, kernels);
  walk(stages, pool);
}

void mirror_gram(float* gram, int64_t columns, ThreadPool& pool) {
  const int64_t panels = ceil_div(columns, kPanelColumns);
  OneStage stage(panels, [&](int64_t panel) {
    const int64_t begin = panel * kPanelColumns;
    const int64_t end = std::min(begin + kPanelColumns, columns);
    for (int64_t left = 0; left <= begin; left += kPanelColumns) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t last = std::min(left + kPanelColumns, i);
        for (int64_t j = left; j < last; ++j) gram[i * columns + j] = gram[j * columns + i];
      }
    }
  });
  walk(stage, pool);
}

void add_moments(const float* x, int64_t rows, int64_t columns, const ColumnSums& sums,
                 const GramKernels& kernels, ThreadPool& pool) {
  const int64_t wide = moment_columns(columns, pool.size());
  OneStage stage(ceil_div(columns, wide), [&](int64_t part) {
    const int64_t begin = part * wide;
    kernels.moments(x + begin, columns, rows, std::min(wide, columns - begin),
                    {sums.squares + begin, sums.absolute + begin, sums.largest + begin});
  });
  walk(stage, pool);
}

}  // namespace fewbit
