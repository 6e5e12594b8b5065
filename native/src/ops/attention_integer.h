// The two products of attention over an integer store.
//
// A score is, for each run of 32 elements in ascending order, acc = fma(float(dot), round(scale_q *
// scale_k), acc), with `dot` the exact product of the run's codes: a query is rounded to 16 bits
// per run. A value is its code times its scale, exact in float32, so the weighted sum is that of
// floats.
#pragma once

#include <utility>

#include "ops/attention_tiles.h"
#include "ops/stored_integer.h"

#define FEWBIT_LAMBDA __attribute__((always_inline))

namespace fewbit {

// A query's runs: pairs of 16-bit codes, a scale a run, and what the sum of a run's products starts
// from, which takes the offset of the stored codes off again.
struct RoundedQuery {
  const int32_t* pairs;
  const float* scales;
  const int32_t* starts;
};

// Words that a rounded query takes.
FEWBIT_INLINE int64_t rounded_query_words(int64_t head_dim) {
  return head_dim / 2 + 2 * (head_dim / kRun);
}

template <class S, class Stored>
FEWBIT_INLINE RoundedQuery round_query(const float* q, int64_t head_dim, float* words) {
  const int64_t runs = head_dim / kRun;
  auto* pairs = reinterpret_cast<int32_t*>(words);
  float* scales = words + head_dim / 2;
  auto* starts = reinterpret_cast<int32_t*>(scales + runs);
  for (int64_t r = 0; r < runs; ++r) {
    const typename S::F32 a = S::load(q + r * kRun);
    const typename S::F32 b = S::load(q + r * kRun + kLanes);
    const float largest = S::reduce_max(S::max(S::abs(a), S::abs(b)));
    const float scale = largest / 32767.0f + unsound<S>(a, b);
    alignas(64) int32_t codes[kRun];
    round_run<S>(a, b, scale, -32767.0f, 32767.0f, codes);
    int32_t sum = 0;
    for (int64_t i = 0; i < kRun; i += 2) {
      pairs[(r * kRun + i) / 2] = static_cast<int32_t>(static_cast<uint32_t>(codes[i + 1]) << 16 |
                                                       static_cast<uint16_t>(codes[i]));
      sum += codes[i] + codes[i + 1];
    }
    scales[r] = scale;
    starts[r] = -Stored::kOffset * sum;
  }
  return {pairs, scales, starts};
}

// Calls f(0) .. f(N - 1) with constants, so that what they index can stay in registers: inside the
// loop over runs GCC 12 keeps sums in memory even where their loops are unrolled by pragma.
template <class F, int... I>
FEWBIT_INLINE void each_of(std::integer_sequence<int, I...>, F f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
FEWBIT_INLINE void each(F f) {
  each_of(std::make_integer_sequence<int, N>{}, f);
}

// The sums of one run of Q queries and T tiles of 16 keys, at most 32 * 127 * 32767 < 2^27 each.
template <class S, class Stored, int Q, int T>
struct RunSums {
  typename S::I32 sum[Q][T];

  FEWBIT_INLINE void multiply(RunSums& to, const RoundedQuery* q, const uint8_t* keys,
                              int64_t tile_bytes, int64_t r, const uint8_t* ahead) {
    constexpr int64_t kAhead = T * kKeyRunBytes<Stored> / (kRun / 2);
    each<Q>([&](auto i) FEWBIT_LAMBDA {
      each<T>([&](auto t) FEWBIT_LAMBDA { to.sum[i][t] = S::set1(q[i].starts[r]); });
    });
    const int64_t first = r * (kRun / 2);
    for (int64_t pair = 0; pair < kRun / 2; ++pair) {
      prefetch_bytes<S, Stored>(ahead + (first + pair) * kAhead, kAhead);
      typename S::I32 key[T];
      each<T>([&](auto t) FEWBIT_LAMBDA {
        key[t] = Stored::load_pairs(keys + t * tile_bytes + pair * Stored::kPairs);
      });
      each<Q>([&](auto i) FEWBIT_LAMBDA {
        const typename S::I32 codes = S::set1(q[i].pairs[first + pair]);
        each<T>([&](auto t) FEWBIT_LAMBDA { to.sum[i][t] = S::dot2(to.sum[i][t], key[t], codes); });
      });
    }
  }

  FEWBIT_INLINE void add(const RunSums& from, const RoundedQuery* q, const uint8_t* keys,
                         int64_t tile_bytes, int64_t r, float* out) {
    each<T>([&](auto t) FEWBIT_LAMBDA {
      const typename S::F32 scale = S::load_f16(keys + t * tile_bytes + kKeyRunCodes<Stored>);
      each<Q>([&](auto i) FEWBIT_LAMBDA {
        float* to = out + i * kKeyBlock + t * kLanes;
        const typename S::F32 before = r == 0 ? S::zero_f32() : S::load(to);
        const typename S::F32 both = S::mul(S::set1(q[i].scales[r]), scale);
        S::store(to, S::fma(S::convert(from.sum[i][t]), both, before));
      });
    });
  }
};

// Scores of Q queries against T tiles of 16 keys: out[i][t * 16 + lane].
template <class S, class Stored, int Q, int T>
FEWBIT_INLINE void score_tiles_of_runs(const RoundedQuery* q, const uint8_t* keys, int64_t runs,
                                       const uint8_t* ahead, float* out) {
  using Sums = RunSums<S, Stored, Q, T>;
  const int64_t tile_bytes = runs * kKeyRunBytes<Stored>;
  for (int64_t r = 0; r < runs; ++r, keys += kKeyRunBytes<Stored>) {
    Sums sums;
    Sums::multiply(sums, q, keys, tile_bytes, r, ahead);
    Sums::add(sums, q, keys, tile_bytes, r, out);
  }
}

template <class S, class Stored, int Q, int T>
FEWBIT_INLINE void score_page_of_runs(const RoundedQuery* q, const uint8_t* keys, int64_t first,
                                      int64_t tiles, int64_t head_dim, const uint8_t* ahead,
                                      float* out) {
  const int64_t runs = head_dim / kRun;
  const int64_t tile_bytes = runs * kKeyRunBytes<Stored>;
  int64_t t = first;
  for (; t + T <= tiles; t += T) {
    score_tiles_of_runs<S, Stored, Q, T>(q, keys + t * tile_bytes, runs, ahead + t * tile_bytes,
                                         out + t * kLanes);
  }
  for (; t < tiles; ++t) {
    score_tiles_of_runs<S, Stored, Q, 1>(q, keys + t * tile_bytes, runs, ahead + t * tile_bytes,
                                         out + t * kLanes);
  }
}

// A page's value scales as floats, [page][runs].
template <class S, class Stored>
FEWBIT_INLINE void load_value_scales(const uint8_t* page, int64_t head_dim, float* scales) {
  const uint8_t* halves = page + value_scales_at<Stored>(head_dim);
  for (int64_t i = 0; i < kPage * (head_dim / kRun); i += kLanes) {
    S::store(scales + i, S::load_f16(halves + 2 * i));
  }
}

// A page's values [begin, end) as floats, [page][head_dim].
template <class S, class Stored>
FEWBIT_INLINE void convert_values(const uint8_t* page, const float* scales, int64_t head_dim,
                                  int64_t begin, int64_t end, float* to) {
  const int64_t runs = head_dim / kRun;
  for (int64_t i = begin * runs; i < end * runs; ++i) {
    typename S::F32 low, high;
    Stored::load_values(page + i * Stored::kValues, scales[i], low, high);
    S::store(to + i * kRun, low);
    S::store(to + i * kRun + kLanes, high);
  }
}

// out[i][32 R columns] += sum over keys [begin, end) of p_i[key] value[key][..], ascending.
// `values` and `scales` point to the first run of key 0.
template <class S, class Stored, int Q, int R>
FEWBIT_INLINE void weigh_runs(const float* p, const uint8_t* values, const float* scales,
                              int64_t runs, int64_t begin, int64_t end, const uint8_t* ahead,
                              float* out) {
  const int64_t stride = runs * kRun;
  const int64_t row_bytes = runs * Stored::kValues;
  typename S::F32 sum[Q][2 * R];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 2 * R; ++j) sum[i][j] = S::load(out + i * stride + j * kLanes);
  }
  for (int64_t key = begin; key < end; ++key) {
    prefetch_bytes<S, Stored>(ahead + key * row_bytes, R * Stored::kValues);
    typename S::F32 value[2 * R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Stored::load_values(values + key * row_bytes + r * Stored::kValues, scales[key * runs + r],
                          value[2 * r], value[2 * r + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const typename S::F32 weight = S::set1(p[i * kKeyBlock + key]);
#pragma GCC unroll 8
      for (int j = 0; j < 2 * R; ++j) sum[i][j] = S::fma(weight, value[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 2 * R; ++j) S::store(out + i * stride + j * kLanes, sum[i][j]);
  }
}

template <class S, class Stored, int Q, int D>
FEWBIT_INLINE void weigh_page_of_runs(const float* p, const uint8_t* values, const float* scales,
                                      int64_t head_dim, int64_t begin, int64_t end,
                                      const uint8_t* ahead, float* out) {
  static_assert(D % 2 == 0, "a run is two tiles");
  constexpr int kRunsAtOnce = D / 2;
  if (begin >= end) return;
  const int64_t runs = head_dim / kRun;
  int64_t r = 0;
  for (; r + kRunsAtOnce <= runs; r += kRunsAtOnce) {
    weigh_runs<S, Stored, Q, kRunsAtOnce>(p, values + r * Stored::kValues, scales + r, runs, begin,
                                          end, ahead + r * Stored::kValues, out + r * kRun);
  }
  if constexpr (kRunsAtOnce > 1) {
    for (; r < runs; ++r) {
      weigh_runs<S, Stored, Q, 1>(p, values + r * Stored::kValues, scales + r, runs, begin, end,
                                  ahead + r * Stored::kValues, out + r * kRun);
    }
  }
}

}  // namespace fewbit
