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

// The rows of a chunk of blocks as panels.
class Panels {
 public:
  Panels(const float* x, int64_t columns, int64_t blocks, const GramKernels& kernels)
      : x_(x),
        columns_(columns),
        count_(ceil_div(columns, kPanelColumns)),
        kernels_(kernels),
        memory_(kernels.panel_bytes * static_cast<size_t>(count_ * blocks)) {}

  int64_t count() const { return count_; }
  int64_t columns() const { return columns_; }
  int64_t columns_of(int64_t panel) const {
    return std::min(kPanelColumns, columns_ - panel * kPanelColumns);
  }
  uint8_t* at(int64_t block, int64_t panel) const {
    const int64_t index = block % kChunkBlocks * count_ + panel;
    return memory_.data() + kernels_.panel_bytes * static_cast<size_t>(index);
  }
  void pack(int64_t number, const Block& block, int64_t panel) {
    const float* x = x_ + block.begin * columns_ + panel * kPanelColumns;
    kernels_.pack(x, columns_, block.rows, columns_of(panel), at(number, panel));
  }

 private:
  const float* x_;
  int64_t columns_;
  int64_t count_;
  const GramKernels& kernels_;
  Bytes memory_;
};

// Two stages a chunk of blocks: its panels are packed, then squares of the matrix are added to.
class ProductStages : public Stages {
 public:
  ProductStages(const std::vector<int64_t>& lengths, float* sums, const GramKernels& kernels)
      : blocks_(blocks_of(lengths)), sums_(sums), kernels_(kernels) {}

  int64_t count() const override { return 2 * ceil_div(block_count(), kChunkBlocks); }

  int64_t units(int64_t stage) const override {
    const int64_t in_chunk = std::min(kChunkBlocks, block_count() - first_block(stage));
    return stage % 2 == 0 ? packed_panels() * in_chunk : static_cast<int64_t>(units_.size());
  }

  void run(int64_t stage, int64_t unit, int) override {
    if (stage % 2 == 0) {
      const int64_t block = first_block(stage) + unit / packed_panels();
      return pack(block, blocks_[block], unit % packed_panels());
    }
    const auto [a, b] = units_[unit];
    const int64_t end = std::min(first_block(stage) + kChunkBlocks, block_count());
    for (int64_t j = kGroupPanels * b; j < std::min(kGroupPanels * (b + 1), right().count()); ++j) {
      for (int64_t i = kGroupPanels * a; i < std::min(kGroupPanels * (a + 1), last(j)); ++i) {
        for (int64_t block = first_block(stage); block < end; ++block) add(block, i, j);
      }
    }
  }

 protected:
  int64_t most_blocks() const { return std::min(kChunkBlocks, block_count()); }
  std::vector<std::pair<int64_t, int64_t>> units_;  // groups of panels: left, right

 private:
  virtual const Panels& left() const = 0;
  virtual const Panels& right() const = 0;
  virtual int64_t packed_panels() const = 0;
  virtual void pack(int64_t number, const Block& block, int64_t panel) = 0;
  // Panels of the left factor that are multiplied with a panel of the right one.
  virtual int64_t last(int64_t right_panel) const = 0;

  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }
  static int64_t first_block(int64_t stage) { return stage / 2 * kChunkBlocks; }

  void add(int64_t block, int64_t i, int64_t j) {
    float* square = sums_ + (i * right().columns() + j) * kPanelColumns;
    kernels_.multiply(left().at(block, i), right().at(block, j), blocks_[block].rows,
                      left().columns_of(i), right().columns_of(j), square, right().columns());
  }

  std::vector<Block> blocks_;
  float* sums_;
  const GramKernels& kernels_;
};

// Both factors are the same rows; squares on and above the diagonal.
class GramStages final : public ProductStages {
 public:
  GramStages(const GramInput& input, float* gram, const GramKernels& kernels)
      : ProductStages(input.lengths, gram, kernels),
        panels_(input.x, input.columns, most_blocks(), kernels) {
    const int64_t groups = ceil_div(panels_.count(), kGroupPanels);
    for (int64_t a = 0; a < groups; ++a) {
      for (int64_t b = a; b < groups; ++b) units_.emplace_back(a, b);
    }
  }

 private:
  const Panels& left() const override { return panels_; }
  const Panels& right() const override { return panels_; }
  int64_t packed_panels() const override { return panels_.count(); }
  void pack(int64_t number, const Block& block, int64_t panel) override {
    panels_.pack(number, block, panel);
  }
  int64_t last(int64_t right_panel) const override { return right_panel + 1; }

  Panels panels_;
};

// Two inputs of the same rows; all squares.
class CrossStages final : public ProductStages {
 public:
  CrossStages(const GramInput& left, const GramInput& right, float* cross,
              const GramKernels& kernels)
      : ProductStages(left.lengths, cross, kernels),
        left_(left.x, left.columns, most_blocks(), kernels),
        right_(right.x, right.columns, most_blocks(), kernels) {
    for (int64_t a = 0; a < ceil_div(left_.count(), kGroupPanels); ++a) {
      for (int64_t b = 0; b < ceil_div(right_.count(), kGroupPanels); ++b)
        units_.emplace_back(a, b);
    }
  }

 private:
  const Panels& left() const override { return left_; }
  const Panels& right() const override { return right_; }
  int64_t packed_panels() const override { return left_.count() + right_.count(); }
  void pack(int64_t number, const Block& block, int64_t panel) override {
    if (panel < left_.count()) return left_.pack(number, block, panel);
    right_.pack(number, block, panel - left_.count());
  }
  int64_t last(int64_t) const override { return left_.count(); }

  Panels left_, right_;
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

void add_cross(const GramInput& left, const GramInput& right, float* cross,
               const GramKernels& kernels, ThreadPool& pool) {
  CrossStages stages(left, right, cross, kernels);
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
