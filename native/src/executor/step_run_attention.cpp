// A step's attention: writing keys and values, dealing blocks to units, and merging them.
#include <algorithm>

#include "executor/step_run.h"

namespace fewbit {

// Room for the blocks of those chunks whose rows are few enough to be split over units.
void StepRun::reserve_partials() {
  for (const Span& span : step_.spans) {
    most_blocks_ = std::max(most_blocks_, end_block(span.position + span.count - 1));
  }
  int64_t floats = 0;
  for (const Chunk& chunk : chunks_) {
    for (const Stage& stage : executor_.plan_.body) {
      for (const Chain& chain : stage.chains) {
        const AttentionOp* op = chain.attention;
        if (!op || attention_splits(*op, chunk.rows, executor_.pool_->size()) == 1) continue;
        const int64_t heads = chunk.rows * op->heads;
        floats = std::max(floats, heads * most_blocks_ * partial_floats(op->head_dim));
      }
    }
  }
  const size_t bytes = sizeof(float) * floats;
  if (executor_.partials_.size() < bytes) executor_.partials_ = Bytes(bytes);
}

// Lets every branch begin with what its trunk's first page holds from before the step.
void StepRun::fork_pages() {
  for (size_t i = 0; i < step_.spans.size(); ++i) {
    const Span& span = step_.spans[i];
    if (span.trunk < 0) continue;
    branches_of_.resize(step_.spans.size());
    branches_of_[span.trunk].push_back(static_cast<int32_t>(i));
    const Span& trunk = step_.spans[span.trunk];
    const int64_t first = trunk.position / kPage;
    if (trunk.position % kPage == 0) continue;
    executor_.store_->copy_page(trunk.pages[first], span.pages[first]);
  }
}

template <class F>
void StepRun::for_pages(const AttentionOp& attention, int64_t row, int64_t kv_head, F f) const {
  const int64_t position = position_of(row);
  const auto head = [&](int32_t span) {
    const int32_t page = step_.spans[span].pages[position / kPage];
    return executor_.store_->head(attention.layer, page, kv_head);
  };
  f(head(span_of_[row]));
  if (branches_of_.empty()) return;
  for (const int32_t branch : branches_of_[span_of_[row]]) {
    if (position < step_.spans[branch].position) f(head(branch));
  }
}

void StepRun::run(const StoreKeysStep& step, const Task& task) {
  const View x = view(step.x, task);
  const AttentionOp& attention = *step.attention;
  for_heads(task, attention.head_dim, [&](int64_t row, int64_t column) {
    for_pages(attention, row, column / attention.head_dim, [&](uint8_t* page) {
      stored_.store_key(x.at(row, column), attention.head_dim, position_of(row) % kPage, page);
    });
  });
}

void StepRun::run(const StoreValuesStep& step, const Task& task) {
  const View x = view(step.x, task);
  const AttentionOp& attention = *step.attention;
  const size_t offset = executor_.store_->values_offset(attention.layer);
  for_heads(task, attention.head_dim, [&](int64_t row, int64_t column) {
    for_pages(attention, row, column / attention.head_dim, [&](uint8_t* page) {
      stored_.store_value(x.at(row, column), attention.head_dim, position_of(row) % kPage,
                          page + offset);
    });
  });
}

StepRun::Blocks StepRun::blocks_of(const AttentionOp& attention, int64_t row) const {
  const int64_t position = position_of(row);
  return {first_block(position, attention.window), end_block(position)};
}

float* StepRun::partials_of(const AttentionOp& attention, const Task& task, int64_t row,
                            int64_t head) const {
  const int64_t index = (row - task.chunk.begin) * attention.heads + head;
  return reinterpret_cast<float*>(executor_.partials_.data()) +
         index * most_blocks_ * partial_floats(attention.head_dim);
}

void StepRun::run(const AttendStep& step, const Task& task) {
  const AttentionOp& attention = *step.attention;
  const int64_t group = attention.heads / attention.kv_heads * attention.head_dim;
  const Region& region = task.region;
  for (int64_t column = region.column_begin; column < region.column_end; column += group) {
    const int64_t kv_head = column / group;
    if (region.splits > 1) {
      attend_split(attention, task, kv_head);
      continue;
    }
    for (int64_t row = region.row_begin; row < region.row_end;) {
      const Span& span = step_.spans[span_of_[row]];
      const int64_t end = std::min(region.row_end, span.start + span.count);
      attend_rows(attention, task, kv_head, row, end, nullptr);
      row = end;
    }
  }
}

// This unit's share of a row's blocks; a row of one block is the first unit's alone.
void StepRun::attend_split(const AttentionOp& attention, const Task& task, int64_t kv_head) const {
  const Region& region = task.region;
  for_rows(task, [&](int64_t row) {
    const Blocks all = blocks_of(attention, row);
    if (all.count() == 1) {
      if (region.split == 0) attend_rows(attention, task, kv_head, row, row + 1, nullptr);
      return;
    }
    const Blocks share{all.begin + all.count() * region.split / region.splits,
                       all.begin + all.count() * (region.split + 1) / region.splits};
    attend_rows(attention, task, kv_head, row, row + 1, &share);
  });
}

// Rows of one span and the query heads of one key head, in pieces that fit the scratch. A share of
// the blocks is left in the partials.
void StepRun::attend_rows(const AttentionOp& attention, const Task& task, int64_t kv_head,
                          int64_t row_begin, int64_t row_end, const Blocks* share) const {
  const View q = view(attention.q, task);
  const View out = view(task.out, task);
  const int64_t group = attention.heads / attention.kv_heads;
  const int64_t heads_at_once = std::min(group, kMaxQueries);
  const int64_t rows_at_once = kMaxQueries / heads_at_once;
  const KvStore& store = *executor_.store_;
  for (int64_t row = row_begin; row < row_end; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, row_end - row);
    const Blocks all{blocks_of(attention, row).begin, blocks_of(attention, row + rows - 1).end};
    const Blocks& blocks = share ? *share : all;
    for (int64_t first = 0; first < group; first += heads_at_once) {
      const int64_t head = kv_head * group + first;
      const int64_t column = head * attention.head_dim;
      float* partials = share ? partials_of(attention, task, row, head) : nullptr;
      stored_.attend({q.at(row, column),
                      q.stride,
                      out.at(row, column),
                      out.stride,
                      rows,
                      std::min(heads_at_once, group - first),
                      attention.head_dim,
                      position_of(row),
                      attention.scale,
                      attention.softcap,
                      attention.window,
                      store.head(attention.layer, 0, kv_head),
                      store.page_stride(),
                      store.values_offset(attention.layer),
                      step_.spans[span_of_[row]].pages,
                      blocks.begin,
                      blocks.end,
                      partials,
                      most_blocks_ * partial_floats(attention.head_dim),
                      attend_scratch(task.thread)});
    }
  }
}

void StepRun::run(const MergeStep& step, const Task& task) {
  const AttentionOp& attention = *step.attention;
  if (attention_splits(attention, task.chunk.rows, executor_.pool_->size()) == 1) return;
  const View out = view(step.mixed, task);
  for_heads(task, attention.head_dim, [&](int64_t row, int64_t column) {
    const int64_t blocks = blocks_of(attention, row).count();
    if (blocks == 1) return;
    const float* partials = partials_of(attention, task, row, column / attention.head_dim);
    executor_.ops_.merge_partials(partials, blocks, attention.head_dim, attend_scratch(task.thread),
                                  out.at(row, column));
  });
}

}  // namespace fewbit
