#include "training/attention.h"

#include <algorithm>
#include <atomic>

#include "executor/memory.h"
#include "training/product.h"

namespace fewbit {

namespace {

// Positions whose queries are multiplied at once: keys beyond the last of them are left out.
constexpr int64_t kBlock = 128;

// One sequence and key head, with the query heads that share it. Rows of queries are gathered in
// the order (position, head), so that those of some positions lie together.
class Head {
 public:
  Head(const AttentionTask& task, int64_t unit, const TrainingKernels& kernels)
      : task_(task),
        kernels_(kernels),
        share_(task.heads / task.kv_heads),
        sequence_(unit / task.kv_heads),
        head_(unit % task.kv_heads) {}

  int64_t rows() const { return task_.length * share_; }
  int64_t scores() const { return rows() * task_.length; }

  void forward(uint8_t* memory, uint16_t* out) const {
    const Places at(*this, memory);
    gather(task_.q, at.queries);
    for_blocks([&](int64_t first, int64_t count, int64_t keys) {
      probabilities(at, first, count, keys);
      multiply_alone({rows_of(at.p, first, task_.length), columns_of(task_.v), count, task_.width,
                      keys, at.towards + first * task_.width, task_.width});
    });
    scatter(at.towards, out);
  }

  void backward(uint8_t* memory, const AttentionPull& pull) const {
    const Places at(*this, memory);
    gather(task_.q, at.queries);
    gather(pull.gradient, at.down);
    for_blocks([&](int64_t first, int64_t count, int64_t keys) {
      probabilities(at, first, count, keys);
      multiply_alone({rows_of(at.down, first, task_.width), kept_rows(task_.v), count, keys,
                      task_.width, at.s + first * task_.length, task_.length});
      for (int64_t row = first; row < first + count; ++row)
        kernels_.softmax_back(seen(at.s, at.room, row), at.p + row * task_.length, task_.scale);
      multiply_alone({rows_of(at.s, first, task_.length), columns_of(task_.k), count, task_.width,
                      keys, at.towards + first * task_.width, task_.width});
    });
    scatter(at.towards, pull.towards_q);
    towards_keys(at.p, at.down, pull.towards_v);
    towards_keys(at.s, at.queries, pull.towards_k);
  }

  // What `memory` must have room for.
  size_t bytes() const {
    return sizeof(float) * static_cast<size_t>(task_.length) +
           sizeof(uint16_t) * static_cast<size_t>(3 * rows() * task_.width + 2 * scores());
  }

 private:
  struct Places {
    Places(const Head& head, uint8_t* memory)
        : room(reinterpret_cast<float*>(memory)),
          queries(reinterpret_cast<uint16_t*>(room + head.task_.length)),
          down(queries + head.rows() * head.task_.width),
          towards(down + head.rows() * head.task_.width),
          p(towards + head.rows() * head.task_.width),
          s(p + head.scores()) {}
    float* room;                         // [length]
    uint16_t *queries, *down, *towards;  // [rows][width]
    uint16_t *p, *s;                     // [rows][length]
  };

  // Calls f(first row, rows, keys seen) for every block of positions.
  template <class F>
  void for_blocks(F f) const {
    for (int64_t start = 0; start < task_.length; start += kBlock) {
      const int64_t end = std::min(start + kBlock, task_.length);
      f(start * share_, (end - start) * share_, end);
    }
  }

  // Where the queries of a position lie.
  int64_t queries_at(int64_t position) const {
    return ((sequence_ * task_.length + position) * task_.heads + head_ * share_) * task_.width;
  }

  void gather(const uint16_t* x, uint16_t* out) const {
    const int64_t each = share_ * task_.width;
    for (int64_t i = 0; i < task_.length; ++i) std::copy_n(x + queries_at(i), each, out + i * each);
  }

  void scatter(const uint16_t* x, uint16_t* out) const {
    const int64_t each = share_ * task_.width;
    for (int64_t i = 0; i < task_.length; ++i) std::copy_n(x + i * each, each, out + queries_at(i));
  }

  int64_t kept_stride() const { return task_.kv_heads * task_.width; }
  int64_t kept_at() const { return sequence_ * task_.length * kept_stride() + head_ * task_.width; }

  static Factor rows_of(const uint16_t* x, int64_t first, int64_t stride) {
    return {x + first * stride, stride, 1};
  }
  // Keys or values as what queries are multiplied with, and as what their weights are.
  Factor kept_rows(const uint16_t* x) const { return {x + kept_at(), kept_stride(), 1}; }
  Factor columns_of(const uint16_t* x) const { return {x + kept_at(), 1, kept_stride()}; }

  SeenRow seen(uint16_t* scores, float* room, int64_t row) const {
    const int64_t last = row / share_ + 1;
    const int64_t first = task_.window > 0 ? std::max<int64_t>(0, last - task_.window) : 0;
    return {scores + row * task_.length, room, task_.length, first, last};
  }

  void probabilities(const Places& at, int64_t first, int64_t count, int64_t keys) const {
    multiply_alone({rows_of(at.queries, first, task_.width), kept_rows(task_.k), count, keys,
                    task_.width, at.p + first * task_.length, task_.length});
    for (int64_t row = first; row < first + count; ++row)
      kernels_.softmax(seen(at.p, at.room, row), task_.scale);
  }

  // Sums over rows of weights [rows][length] times x [rows][width]: keys are seen from their own
  // position on.
  void towards_keys(const uint16_t* weights, const uint16_t* x, uint16_t* out) const {
    for (int64_t start = 0; start < task_.length; start += kBlock) {
      const int64_t row = start * share_, count = std::min(kBlock, task_.length - start);
      multiply_alone({{weights + row * task_.length + start, 1, task_.length},
                      {x + row * task_.width, 1, task_.width},
                      count,
                      task_.width,
                      rows() - row,
                      out + kept_at() + start * kept_stride(),
                      kept_stride()});
    }
  }

  const AttentionTask& task_;
  const TrainingKernels& kernels_;
  int64_t share_, sequence_, head_;
};

// Calls job(head, memory) for every sequence and key head.
template <class Job>
void each_head(const AttentionTask& task, const TrainingKernels& kernels, ThreadPool& pool,
               const Job& job) {
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t unit = next++; unit < task.batch * task.kv_heads; unit = next++) {
      const Head head(task, unit, kernels);
      job(head, scratch<Head>(head.bytes()));
    }
  });
}

}  // namespace

void attend(const AttentionTask& task, uint16_t* out, const TrainingKernels& kernels,
            ThreadPool& pool) {
  each_head(task, kernels, pool,
            [&](const Head& head, uint8_t* memory) { head.forward(memory, out); });
}

void attend_back(const AttentionTask& task, const AttentionPull& pull,
                 const TrainingKernels& kernels, ThreadPool& pool) {
  each_head(task, kernels, pool,
            [&](const Head& head, uint8_t* memory) { head.backward(memory, pull); });
}

}  // namespace fewbit
