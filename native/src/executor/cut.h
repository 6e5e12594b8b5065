// How a stage is cut into units of work for a number of rows and threads. Cuts change who computes
// a value and when, never its bits.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/plan.h"

namespace fewbit {

struct ChainCut {
  int64_t rows = 1;  // of a unit; the last may have fewer
  int64_t row_units = 0;
  int64_t column_units = 0;  // shares of the chain's granules, as equal as can be
  int64_t splits = 1;        // attention only: units that share the blocks of a row

  int64_t units() const { return row_units * column_units * splits; }
};

struct StageCut {
  std::vector<ChainCut> chains;
  int64_t units = 0;
};

// A rectangle of one chain.
struct Region {
  const Chain* chain;
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;
  int64_t split, splits;
};

// Units that share one row's blocks where rows and key heads alone leave threads idle; 1 otherwise.
int64_t attention_splits(const AttentionOp& attention, int64_t rows, int threads);

std::vector<StageCut> cut_stages(const std::vector<Stage>& stages, int64_t rows, int threads);

// The region of unit `unit`; rows count from 0.
Region region_of(const Stage& stage, const StageCut& cut, int64_t rows, int64_t unit);

}  // namespace fewbit
