#include "executor/cut.h"

#include <algorithm>

#include "ops/ops.h"

namespace fewbit {

namespace {

// Units a thread gets of one stage: enough to even out by stealing, few enough to be cheap.
constexpr int64_t kUnitsPerThread = 6;
// The same for the blocks of few rows' attention.
constexpr int64_t kSplitUnitsPerThread = 4;
// Elements below which a unit of elementwise work is not worth handing to another thread: about
// half a microsecond.
constexpr int64_t kSmallestUnit = 4096;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t granules(const Chain& chain) { return ceil_div(chain.columns, chain.granule); }

ChainCut cut(int64_t all_rows, int64_t rows, int64_t column_units, int64_t splits = 1) {
  return {rows, ceil_div(all_rows, rows), column_units, splits};
}

// Rows first, since only whole rows can be normed; columns stay whole.
ChainCut cut_rows(const Chain& chain, int64_t rows, int threads) {
  const int64_t fair = ceil_div(rows, threads * kUnitsPerThread);
  const int64_t most = std::max<int64_t>(1, kUnitElements / chain.columns);
  const int64_t least = std::max<int64_t>(1, kSmallestUnit / chain.columns);
  return cut(rows, std::min(most, std::max(fair, least)), 1);
}

// One key head with its query heads; as many rows as share the reading of keys and values.
ChainCut cut_attention(const Chain& chain, int64_t rows, int threads) {
  const int64_t splits = attention_splits(*chain.attention, rows, threads);
  if (splits > 1) return cut(rows, 1, granules(chain), splits);
  const int64_t group = chain.attention->heads / chain.attention->kv_heads;
  const int64_t fair = rows * chain.attention->kv_heads / (threads * kUnitsPerThread);
  const int64_t fits = std::min(kMaxQueries / group, kUnitElements / chain.granule);
  return cut(rows, std::clamp<int64_t>(fair, 1, std::max<int64_t>(1, fits)), granules(chain));
}

// All rows, so that weights are read once; outputs by their share of the stage's work, in a
// multiple of the threads.
ChainCut cut_outputs(const Chain& chain, int64_t rows, int64_t stage_cost, int threads) {
  const int64_t all = granules(chain);
  const int64_t most = std::max<int64_t>(1, kUnitElements / (rows * chain.granule));
  const int64_t share = chain.columns * chain.inputs * kUnitsPerThread / stage_cost;
  const int64_t fair = std::max<int64_t>(1, share) * threads;
  const int64_t units = std::min(all, std::max(fair, ceil_div(all, most)));
  const int64_t columns = ceil_div(all, units) * chain.granule;
  return cut(rows, std::clamp<int64_t>(kUnitElements / columns, 1, rows), units);
}

ChainCut cut_chain(const Chain& chain, int64_t rows, int64_t stage_cost, int threads) {
  if (chain.together) return cut(rows, rows, 1);
  if (chain.attention) return cut_attention(chain, rows, threads);
  if (chain.inputs > 0) return cut_outputs(chain, rows, stage_cost, threads);
  return cut_rows(chain, rows, threads);
}

}  // namespace

int64_t attention_splits(const AttentionOp& attention, int64_t rows, int threads) {
  const int64_t whole = rows * attention.kv_heads;
  const int64_t wanted = kSplitUnitsPerThread * threads;
  return threads == 1 || whole >= wanted ? 1 : ceil_div(wanted, whole);
}

std::vector<StageCut> cut_stages(const std::vector<Stage>& stages, int64_t rows, int threads) {
  std::vector<StageCut> cuts;
  cuts.reserve(stages.size());
  for (const Stage& stage : stages) {
    int64_t cost = 0;
    for (const Chain& chain : stage.chains) cost += chain.columns * chain.inputs;
    StageCut cut;
    for (const Chain& chain : stage.chains) {
      const bool empty = chain.steps.empty() || rows == 0;
      cut.chains.push_back(empty ? ChainCut{} : cut_chain(chain, rows, cost, threads));
      cut.units += cut.chains.back().units();
    }
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

Region region_of(const Stage& stage, const StageCut& cut, int64_t rows, int64_t unit) {
  size_t i = 0;
  for (;; ++i) {
    const int64_t units = cut.chains[i].units();
    if (unit < units) break;
    unit -= units;
  }
  const Chain& chain = stage.chains[i];
  const ChainCut& at = cut.chains[i];
  const int64_t split = unit % at.splits;
  unit /= at.splits;
  const int64_t row = unit % at.row_units * at.rows;
  const int64_t share = unit / at.row_units;
  const int64_t all = granules(chain);
  return {&chain,
          row,
          std::min(row + at.rows, rows),
          all * share / at.column_units * chain.granule,
          std::min(all * (share + 1) / at.column_units * chain.granule, chain.columns),
          split,
          at.splits};
}

}  // namespace fewbit
