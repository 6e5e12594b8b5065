#include "training/product.h"

#include <algorithm>
#include <atomic>

#include "gram/gram.h"

namespace fewbit {

#if defined(__x86_64__)
void multiply_block_amx(const Product& product, const ProductBlock& block);
#endif

namespace {

// Outputs of a unit of work at most: each packs its own share of both factors, so large blocks pack
// less, and what is packed must stay in the second-level cache.
constexpr int64_t kMostRows = 512;
constexpr int64_t kMostColumns = 768;
constexpr int64_t kPanel = 32;

// The extent of each of `parts` nearly equal parts, in whole panels.
int64_t part(int64_t size, int64_t parts) {
  return std::max(kPanel, ceil_div(ceil_div(size, parts), kPanel) * kPanel);
}

// Outputs cut into units of work, for so many threads at least.
class Units {
 public:
  Units(const Product& product, int64_t threads)
      : product_(product),
        wide_(part(product.columns, ceil_div(product.columns, kMostColumns))),
        across_(ceil_div(product.columns, wide_)),
        high_(part(product.rows,
                   std::max(ceil_div(product.rows, kMostRows), ceil_div(threads, across_)))) {}

  int64_t count() const { return ceil_div(product_.rows, high_) * across_; }

  void run(int64_t unit) const {
    const int64_t row = unit / across_ * high_, column = unit % across_ * wide_;
    const ProductBlock block{row, std::min(high_, product_.rows - row), column,
                             std::min(wide_, product_.columns - column)};
#if defined(__x86_64__)
    multiply_block_amx(product_, block);
#else
    static_cast<void>(block);
#endif
  }

 private:
  const Product& product_;
  int64_t wide_, across_, high_;
};

}  // namespace

bool multiplies(Isa isa) { return isa == Isa::kAmx && has_bfloat_tiles(); }

void multiply(const Product& product, ThreadPool& pool) {
  const Units units(product, pool.size());
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t unit = next++; unit < units.count(); unit = next++) units.run(unit);
  });
}

void multiply_alone(const Product& product) {
  const Units units(product, 1);
  for (int64_t unit = 0; unit < units.count(); ++unit) units.run(unit);
}

}  // namespace fewbit
