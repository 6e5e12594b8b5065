// The two products of attention on registers: scores of queries against tiles of 16 keys, and the
// weighted sum of values.
#pragma once

#include "ops/ops.h"
#include "ops/stored.h"

namespace fewbit {

// The loops over queries and tiles are unrolled by hand: left to itself, GCC 12 keeps the sums in
// memory, which was measured at four times the time.

// Asks for `bytes` bytes of what will be read next, where that comes from memory.
template <class S, class Stored>
FEWBIT_INLINE void prefetch_bytes(const uint8_t* ahead, int64_t bytes) {
  if constexpr (Stored::kFromMemory) {
    for (int64_t line = 0; line < bytes; line += 64) S::prefetch(ahead + line);
  }
}

// Scores of Q queries against T tiles of 16 keys: out[i][t * 16 + lane] = q_i . key.
template <class S, class Stored, int Q, int T>
FEWBIT_INLINE void score_tiles(const float* const* q, const typename Stored::Element* keys,
                               int64_t head_dim, const uint8_t* ahead, float* out) {
  constexpr int64_t kAhead = T * kLanes * sizeof(typename Stored::Element);
  typename S::F32 sum[Q][T];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sum[i][t] = S::zero_f32();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    prefetch_bytes<S, Stored>(ahead + d * kAhead, kAhead);
    typename S::F32 key[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) key[t] = Stored::load(keys + (t * head_dim + d) * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const typename S::F32 element = S::set1(q[i][d]);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[i][t] = S::fma(element, key[t], sum[i][t]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) S::store(out + i * kKeyBlock + t * kLanes, sum[i][t]);
  }
}

template <class S, class Stored, int Q, int T>
FEWBIT_INLINE void score_page(const float* const* q, const typename Stored::Element* keys,
                              int64_t first, int64_t tiles, int64_t head_dim, const uint8_t* ahead,
                              float* out) {
  using Element = typename Stored::Element;
  const auto tile_bytes = static_cast<int64_t>(kLanes * sizeof(Element)) * head_dim;
  int64_t t = first;
  for (; t + T <= tiles; t += T) {
    score_tiles<S, Stored, Q, T>(q, keys + t * kLanes * head_dim, head_dim, ahead + t * tile_bytes,
                                 out + t * kLanes);
  }
  for (; t < tiles; ++t) {
    score_tiles<S, Stored, Q, 1>(q, keys + t * kLanes * head_dim, head_dim, ahead + t * tile_bytes,
                                 out + t * kLanes);
  }
}

// out[i][d .. d + 16 D) += sum over keys [begin, end) of p_i[key] value[key][d ..], ascending.
template <class S, class Stored, int Q, int D>
FEWBIT_INLINE void weigh_columns(const float* p, const typename Stored::Element* values,
                                 int64_t stride, int64_t begin, int64_t end, const uint8_t* ahead,
                                 float* out) {
  const auto row_bytes = static_cast<int64_t>(sizeof(typename Stored::Element)) * stride;
  typename S::F32 sum[Q][D];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) sum[i][j] = S::load(out + i * stride + j * kLanes);
  }
  for (int64_t key = begin; key < end; ++key) {
    prefetch_bytes<S, Stored>(ahead + key * row_bytes, row_bytes);
    typename S::F32 value[D];
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) value[j] = Stored::load(values + key * stride + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const typename S::F32 weight = S::set1(p[i * kKeyBlock + key]);
#pragma GCC unroll 8
      for (int j = 0; j < D; ++j) sum[i][j] = S::fma(weight, value[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) S::store(out + i * stride + j * kLanes, sum[i][j]);
  }
}

template <class S, class Stored, int Q, int D>
FEWBIT_INLINE void weigh(const float* p, const typename Stored::Element* values, int64_t stride,
                         int64_t begin, int64_t end, const uint8_t* ahead, float* out) {
  if (begin >= end) return;
  int64_t d = 0;
  for (; d + D * kLanes <= stride; d += D * kLanes) {
    weigh_columns<S, Stored, Q, D>(p, values + d, stride, begin, end, ahead, out + d);
  }
  for (; d < stride; d += kLanes) {
    weigh_columns<S, Stored, Q, 1>(p, values + d, stride, begin, end, ahead, out + d);
  }
}

}  // namespace fewbit
