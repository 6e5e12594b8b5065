// Attention over the paged store, on the lanes of simd.h.
//
// One query row does the same arithmetic whatever shares the call with it:
//   score of a key: one fma chain over the head's elements, ascending; lanes are keys;
//   in each absolute block of 256 keys: maximum m', p = exp(s - m'), l' = sum of p over 16 lanes
//   and one tree, o' = one fma chain over the block's keys, ascending; lanes are head elements;
//   blocks are merged ascending: M = max(m, m'), l = l e^(m-M) + l' e^(m'-M), o likewise.
// Keys outside the row's range take no part: their lanes are -inf and exact zeros in the sums, and
// their values are never read. Blocks without a key in range are skipped.
#pragma once

#include "ops/elementwise.h"
#include "ops/ops.h"

namespace fewbit {

// How the store holds a number.
template <class S>
struct StoredF16 {
  using Element = uint16_t;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load_f16(p); }
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) { S::store_f16(p, x); }
};

template <class S>
struct StoredF32 {
  using Element = float;
  FEWBIT_INLINE typename S::F32 load(const Element* p) { return S::load(p); }
  FEWBIT_INLINE void store(Element* p, typename S::F32 x) { S::store(p, x); }
};

FEWBIT_INLINE int64_t padded(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

template <class S, class Stored>
void store_key(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  using Element = typename Stored::Element;
  Element* lane =
      reinterpret_cast<Element*>(page) + slot / kLanes * kLanes * head_dim + slot % kLanes;
  Element run[kLanes];
  const auto scatter = [&](int64_t d, int n) {
    for (int i = 0; i < n; ++i) lane[(d + i) * kLanes] = run[i];
  };
  for_lanes(
      head_dim,
      [&](int64_t d) {
        Stored::store(run, S::load(x + d));
        scatter(d, kLanes);
      },
      [&](int64_t d, int n) {
        Stored::store(run, S::load_n(x + d, n));
        scatter(d, n);
      });
}

template <class S, class Stored>
void store_value(const float* x, int64_t head_dim, int64_t slot, uint8_t* page) {
  using Element = typename Stored::Element;
  Element* row = reinterpret_cast<Element*>(page) + slot * padded(head_dim);
  for_lanes(
      head_dim, [&](int64_t d) { Stored::store(row + d, S::load(x + d)); },
      [&](int64_t d, int n) { Stored::store(row + d, S::load_n(x + d, n)); });
}

// Scores of Q queries against T tiles of 16 keys: out[i][t * 16 + lane] = q_i . key.
template <class S, class Stored, int Q, int T>
FEWBIT_INLINE void score_tiles(const float* const* q, const typename Stored::Element* keys,
                               int64_t head_dim, float* out) {
  typename S::F32 sum[Q][T];
  for (int i = 0; i < Q; ++i) {
    for (int t = 0; t < T; ++t) sum[i][t] = S::zero_f32();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    typename S::F32 key[T];
    for (int t = 0; t < T; ++t) key[t] = Stored::load(keys + (t * head_dim + d) * kLanes);
    for (int i = 0; i < Q; ++i) {
      const typename S::F32 element = S::set1(q[i][d]);
      for (int t = 0; t < T; ++t) sum[i][t] = S::fma(element, key[t], sum[i][t]);
    }
  }
  for (int i = 0; i < Q; ++i) {
    for (int t = 0; t < T; ++t) S::store(out + i * kKeyBlock + t * kLanes, sum[i][t]);
  }
}

template <class S, class Stored, int Q, int T>
FEWBIT_INLINE void score_page(const float* const* q, const typename Stored::Element* keys,
                              int64_t first, int64_t tiles, int64_t head_dim, float* out) {
  int64_t t = first;
  for (; t + T <= tiles; t += T) {
    score_tiles<S, Stored, Q, T>(q, keys + t * kLanes * head_dim, head_dim, out + t * kLanes);
  }
  for (; t < tiles; ++t) {
    score_tiles<S, Stored, Q, 1>(q, keys + t * kLanes * head_dim, head_dim, out + t * kLanes);
  }
}

// out[i][d .. d + 16 D) += sum over keys [begin, end) of p_i[key] value[key][d ..], ascending.
template <class S, class Stored, int Q, int D>
FEWBIT_INLINE void weigh_columns(const float* p, const typename Stored::Element* values,
                                 int64_t stride, int64_t begin, int64_t end, float* out) {
  typename S::F32 sum[Q][D];
  for (int i = 0; i < Q; ++i) {
    for (int j = 0; j < D; ++j) sum[i][j] = S::load(out + i * stride + j * kLanes);
  }
  for (int64_t key = begin; key < end; ++key) {
    typename S::F32 value[D];
    for (int j = 0; j < D; ++j) value[j] = Stored::load(values + key * stride + j * kLanes);
    for (int i = 0; i < Q; ++i) {
      const typename S::F32 weight = S::set1(p[i * kKeyBlock + key]);
      for (int j = 0; j < D; ++j) sum[i][j] = S::fma(weight, value[j], sum[i][j]);
    }
  }
  for (int i = 0; i < Q; ++i) {
    for (int j = 0; j < D; ++j) S::store(out + i * stride + j * kLanes, sum[i][j]);
  }
}

template <class S, class Stored, int Q, int D>
FEWBIT_INLINE void weigh(const float* p, const typename Stored::Element* values, int64_t stride,
                         int64_t begin, int64_t end, float* out) {
  if (begin >= end) return;
  int64_t d = 0;
  for (; d + D * kLanes <= stride; d += D * kLanes) {
    weigh_columns<S, Stored, Q, D>(p, values + d, stride, begin, end, out + d);
  }
  for (; d < stride; d += kLanes) {
    weigh_columns<S, Stored, Q, 1>(p, values + d, stride, begin, end, out + d);
  }
}

// The keys [begin, end) of a block that a query may read, counted from the block's start.
struct KeyRange {
  int64_t begin, end;
};

FEWBIT_INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
FEWBIT_INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

// One call of attend. Shape::kQueries queries by Shape::kTiles registers fill the register file.
template <class S, class Stored, class Shape>
struct Attention {
  using Element = typename Stored::Element;
  using F32 = typename S::F32;

  const Attend& a;
  int64_t queries, width;
  float *scores, *block_out, *out, *block_max, *block_sum, *maximum, *sum;
  float *key_page, *value_page;
  const float* query[kMaxQueries];
  KeyRange range[kMaxQueries];

  explicit Attention(const Attend& attend)
      : a(attend), queries(attend.rows * attend.heads), width(padded(attend.head_dim)) {
    scores = a.scratch;
    block_out = scores + kMaxQueries * kKeyBlock;
    out = block_out + kMaxQueries * width;
    key_page = out + kMaxQueries * width;
    value_page = key_page + kPage * a.head_dim;
    block_max = value_page + kPage * width;
    block_sum = block_max + kMaxQueries;
    maximum = block_sum + kMaxQueries;
    sum = maximum + kMaxQueries;
    for (int64_t i = 0; i < queries; ++i) {
      query[i] = a.q + i / a.heads * a.q_stride + i % a.heads * a.head_dim;
      sum[i] = 0.0f;  // no block yet: a merged sum is at least 1
    }
  }

  int64_t lowest_key(int64_t row) const {
    return a.window ? at_least(0, a.position + row - a.window + 1) : 0;
  }

  void run() {
    const int64_t last = a.position + a.rows - 1;
    for (int64_t start = lowest_key(0) / kKeyBlock * kKeyBlock; start <= last; start += kKeyBlock) {
      set_ranges(start);
      score_block(start);
      for (int64_t i = 0; i < queries; ++i) soften(i);
      weigh_block(start);
      for (int64_t i = 0; i < queries; ++i) merge(i);
    }
    for (int64_t i = 0; i < queries; ++i) finish(i);
  }

  void set_ranges(int64_t start) {
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = i / a.heads;
      const int64_t end = at_most(kKeyBlock, a.position + row + 1 - start);
      const int64_t begin = at_least(0, lowest_key(row) - start);
      range[i] = begin < end ? KeyRange{begin, end} : KeyRange{0, 0};
    }
  }

  // The keys of a page that any query of [first, first + count) may read.
  KeyRange page_range(int64_t page, int64_t first, int64_t count) const {
    KeyRange all{kPage, 0};
    for (int64_t i = first; i < first + count; ++i) {
      if (range[i].begin == range[i].end) continue;
      all.begin = at_most(all.begin, at_least(0, range[i].begin - page * kPage));
      all.end = at_least(all.end, at_most(kPage, range[i].end - page * kPage));
    }
    return all;
  }

  const uint8_t* page_at(int64_t start, int64_t page) const {
    return a.store + static_cast<size_t>(a.pages[start / kPage + page]) * a.page_stride;
  }

  // Many queries read a page many times: its conversion to float32 is then done once.
  bool worth_converting() const { return queries > 2 * Shape::kQueries; }

  void score_block(int64_t start) {
    for (int64_t page = 0; page < kKeyBlock / kPage; ++page) {
      const KeyRange keys = page_range(page, 0, queries);
      if (keys.begin >= keys.end) continue;
      const auto* stored = reinterpret_cast<const Element*>(page_at(start, page));
      const int64_t first = keys.begin / kLanes;
      const int64_t tiles = (keys.end + kLanes - 1) / kLanes;
      if (worth_converting()) {
        for (int64_t i = first * a.head_dim; i < tiles * a.head_dim; ++i) {
          S::store(key_page + i * kLanes, Stored::load(stored + i * kLanes));
        }
        score_queries<StoredF32<S>>(key_page, first, tiles, page);
      } else {
        score_queries<Stored>(stored, first, tiles, page);
      }
    }
  }

  template <class From>
  void score_queries(const typename From::Element* keys, int64_t first, int64_t tiles,
                     int64_t page) {
    for (int64_t i = 0; i < queries; i += Shape::kQueries) {
      score_some<From, Shape::kQueries>(at_most(queries - i, Shape::kQueries), i, keys, first,
                                        tiles, page);
    }
  }

  template <class From, int Q>
  void score_some(int64_t count, int64_t i, const typename From::Element* keys, int64_t first,
                  int64_t tiles, int64_t page) {
    if constexpr (Q > 0) {
      if (count < Q) return score_some<From, Q - 1>(count, i, keys, first, tiles, page);
      score_page<S, From, Q, Shape::kTiles>(query + i, keys, first, tiles, a.head_dim,
                                            scores + i * kKeyBlock + page * kPage);
    }
  }

  FEWBIT_INLINE typename S::Mask inside(const KeyRange& keys, int64_t from) {
    alignas(64) static constexpr int32_t kIndex[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                           8, 9, 10, 11, 12, 13, 14, 15};
    const typename S::I32 index = S::add(S::load(kIndex), S::set1(static_cast<int32_t>(from)));
    const auto begin = S::less_i32(S::set1(static_cast<int32_t>(keys.begin - 1)), index);
    return S::both(begin, S::less_i32(index, S::set1(static_cast<int32_t>(keys.end))));
  }

  // Scores of one query -> exp(score - maximum), and their sum.
  void soften(int64_t i) {
    const KeyRange& keys = range[i];
    if (keys.begin == keys.end) return;
    float* row = scores + i * kKeyBlock;
    const int64_t first = keys.begin / kLanes * kLanes;
    const F32 lowest = S::set1(-__builtin_inff());
    F32 largest = lowest;
    for (int64_t k = first; k < keys.end; k += kLanes) {
      F32 s = S::mul(S::load(row + k), S::set1(a.scale));
      if (a.softcap != 0.0f) s = capped<S>(s, a.softcap);
      s = S::select(inside(keys, k), s, lowest);
      S::store(row + k, s);
      largest = S::max(largest, s);
    }
    block_max[i] = S::reduce_max(largest);
    const F32 top = S::set1(block_max[i]);
    F32 total = S::zero_f32();
    for (int64_t k = first; k < keys.end; k += kLanes) {
      const F32 p =
          S::select(inside(keys, k), exp<S>(S::sub(S::load(row + k), top)), S::zero_f32());
      S::store(row + k, p);
      total = S::add(total, p);
    }
    block_sum[i] = S::reduce_add(total);
  }

  void weigh_block(int64_t start) {
    for (int64_t i = 0; i < queries * width; i += kLanes) S::store(block_out + i, S::zero_f32());
    for (int64_t page = 0; page < kKeyBlock / kPage; ++page) {
      const KeyRange keys = page_range(page, 0, queries);
      if (keys.begin >= keys.end) continue;
      const auto* stored = reinterpret_cast<const Element*>(page_at(start, page) + a.values_offset);
      if (worth_converting()) {
        for (int64_t i = keys.begin * width; i < keys.end * width; i += kLanes) {
          S::store(value_page + i, Stored::load(stored + i));
        }
        weigh_queries<StoredF32<S>>(value_page, page);
      } else {
        weigh_queries<Stored>(stored, page);
      }
    }
  }

  template <class From>
  void weigh_queries(const typename From::Element* values, int64_t page) {
    for (int64_t i = 0; i < queries; i += Shape::kQueries) {
      weigh_group<From>(values, page, i, at_most(queries - i, Shape::kQueries));
    }
  }

  // The keys that all queries of the group share are read once; the ragged edges query by query,
  // the lower before and the upper after, so every query's chain ascends.
  template <class From>
  void weigh_group(const typename From::Element* values, int64_t page, int64_t first,
                   int64_t count) {
    KeyRange own[Shape::kQueries];
    KeyRange shared{0, kPage};
    for (int64_t i = 0; i < count; ++i) {
      own[i].begin = at_least(0, at_most(kPage, range[first + i].begin - page * kPage));
      own[i].end = at_least(0, at_most(kPage, range[first + i].end - page * kPage));
      shared.begin = at_least(shared.begin, own[i].begin);
      shared.end = at_most(shared.end, own[i].end);
    }
    const float* p = scores + first * kKeyBlock + page * kPage;
    float* to = block_out + first * width;
    if (shared.begin >= shared.end) {
      for (int64_t i = 0; i < count; ++i) weigh_one<From>(values, p, to, i, own[i]);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      weigh_one<From>(values, p, to, i, {own[i].begin, shared.begin});
    }
    weigh_some<From, Shape::kQueries>(count, p, values, shared, to);
    for (int64_t i = 0; i < count; ++i) {
      weigh_one<From>(values, p, to, i, {shared.end, own[i].end});
    }
  }

  template <class From>
  void weigh_one(const typename From::Element* values, const float* p, float* to, int64_t i,
                 const KeyRange& keys) {
    weigh<S, From, 1, Shape::kTiles>(p + i * kKeyBlock, values, width, keys.begin, keys.end,
                                     to + i * width);
  }

  template <class From, int Q>
  void weigh_some(int64_t count, const float* p, const typename From::Element* values,
                  const KeyRange& keys, float* to) {
    if constexpr (Q > 0) {
      if (count < Q) return weigh_some<From, Q - 1>(count, p, values, keys, to);
      weigh<S, From, Q, Shape::kTiles>(p, values, width, keys.begin, keys.end, to);
    }
  }

  void merge(int64_t i) {
    if (range[i].begin == range[i].end) return;
    float* to = out + i * width;
    const float* from = block_out + i * width;
    if (sum[i] == 0.0f) {
      maximum[i] = block_max[i];
      sum[i] = block_sum[i];
      for (int64_t d = 0; d < width; d += kLanes) S::store(to + d, S::load(from + d));
      return;
    }
    const float top = maximum[i] > block_max[i] ? maximum[i] : block_max[i];
    const F32 keep = exp<S>(S::set1(maximum[i] - top));
    const F32 take = exp<S>(S::set1(block_max[i] - top));
    const F32 total = S::fma(S::set1(sum[i]), keep, S::mul(S::set1(block_sum[i]), take));
    alignas(64) float lanes[kLanes];
    S::store(lanes, total);
    sum[i] = lanes[0];
    maximum[i] = top;
    for (int64_t d = 0; d < width; d += kLanes) {
      S::store(to + d, S::fma(S::load(to + d), keep, S::mul(S::load(from + d), take)));
    }
  }

  void finish(int64_t i) {
    float* to = a.out + i / a.heads * a.out_stride + i % a.heads * a.head_dim;
    const F32 total = S::set1(sum[i]);
    map1<S>(out + i * width, a.head_dim, to, [&](F32 v) { return S::div(v, total); });
  }
};

template <class S, class Stored, class Shape>
void attend(const Attend& a) {
  Attention<S, Stored, Shape>(a).run();
}

}  // namespace fewbit
