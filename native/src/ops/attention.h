// Attention over the paged store, on the lanes of simd.h.
//
// One query row does the same arithmetic whatever shares the call with it:
//   score of a key: one fma chain over the head's elements, ascending, or over runs of 32 of them
//   where keys are integers; lanes are keys;
//   in each absolute block of 256 keys: maximum m', p = exp(s - m'), l' = sum of p over 16 lanes
//   and one tree, o' = one fma chain over the block's keys, ascending; lanes are head elements;
//   blocks are merged ascending: M = max(m, m'), l = l e^(m-M) + l' e^(m'-M), o likewise.
// Keys outside the row's range take no part: their lanes are -inf and exact zeros in the sums, and
// their values are never read. Blocks without a key in range are skipped.
#pragma once

#include "ops/attention_integer.h"
#include "ops/attention_tiles.h"
#include "ops/elementwise.h"
#include "ops/ops.h"

namespace fewbit {

// The keys [begin, end) of a block that a query may read, counted from the block's start.
struct KeyRange {
  int64_t begin, end;
};

FEWBIT_INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
FEWBIT_INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

// Merges a block into what was merged before it, in ascending order of blocks; `sum` is 0 before
// the first (a merged sum is at least 1). This is the only form of the merge.
template <class S>
FEWBIT_INLINE void merge_block(float block_max, float block_sum, const float* block_out,
                               int64_t width, float& maximum, float& sum, float* out) {
  using F32 = typename S::F32;
  if (sum == 0.0f) {
    maximum = block_max;
    sum = block_sum;
    for (int64_t d = 0; d < width; d += kLanes) S::store(out + d, S::load(block_out + d));
    return;
  }
  const float top = maximum > block_max ? maximum : block_max;
  const F32 keep = exp<S>(S::set1(maximum - top));
  const F32 take = exp<S>(S::set1(block_max - top));
  alignas(64) float lanes[kLanes];
  S::store(lanes, S::fma(S::set1(sum), keep, S::mul(S::set1(block_sum), take)));
  sum = lanes[0];
  maximum = top;
  for (int64_t d = 0; d < width; d += kLanes) {
    S::store(out + d, S::fma(S::load(out + d), keep, S::mul(S::load(block_out + d), take)));
  }
}

template <class S>
FEWBIT_INLINE void divide_by_sum(const float* out, float sum, int64_t head_dim, float* to) {
  const typename S::F32 total = S::set1(sum);
  map1<S>(out, head_dim, to, [&](typename S::F32 v) { return S::div(v, total); });
}

// Blocks that several units of work computed, as attend leaves them in `partials`.
template <class S>
void merge_partials(const float* partials, int64_t blocks, int64_t head_dim, float* scratch,
                    float* to) {
  const int64_t width = padded(head_dim);
  float maximum = 0.0f;
  float sum = 0.0f;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* record = partials + block * partial_floats(head_dim);
    merge_block<S>(record[0], record[1], record + kLanes, width, maximum, sum, scratch);
  }
  divide_by_sum<S>(scratch, sum, head_dim, to);
}

// One call of attend. Shape::kQueries queries by Shape::kTiles registers fill the register file.
template <class S, class Stored, class Shape>
struct Attention {
  using Element = typename Stored::Element;
  using F32 = typename S::F32;

  const Attend& a;
  int64_t queries, width;
  float *scores, *block_out, *out, *block_max, *block_sum, *maximum, *sum;
  float *key_page, *value_page;
  float* value_scales;
  const float* query[kMaxQueries];
  RoundedQuery rounded[Stored::kInteger ? kMaxQueries : 1];
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
    float* words = sum + kMaxQueries;
    value_scales = words + kMaxQueries * rounded_query_words(a.head_dim);
    if constexpr (Stored::kInteger) {
      for (int64_t i = 0; i < queries; ++i, words += rounded_query_words(a.head_dim)) {
        rounded[i] = round_query<S, Stored>(query[i], a.head_dim, words);
      }
    }
  }

  int64_t lowest_key(int64_t row) const {
    return a.window ? at_least(0, a.position + row - a.window + 1) : 0;
  }

  void run() {
    for (int64_t block = a.block_begin; block < a.block_end; ++block) {
      const int64_t start = block * kKeyBlock;
      set_ranges(start);
      score_block(start);
      for (int64_t i = 0; i < queries; ++i) soften(i);
      weigh_block(start);
      for (int64_t i = 0; i < queries; ++i) a.partials ? record(i, block) : merge(i);
    }
    if (a.partials) return;
    for (int64_t i = 0; i < queries; ++i) {
      float* to = a.out + i / a.heads * a.out_stride + i % a.heads * a.head_dim;
      divide_by_sum<S>(out + i * width, sum[i], a.head_dim, to);
    }
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

  // What is read after a page's keys, and after its values: asked for while they are worked on.
  bool is_stored(int64_t start, int64_t page) const {
    return start + page * kPage < a.position + a.rows;
  }
  const uint8_t* after_keys(int64_t start, int64_t page) const {
    const bool more = page + 1 < kKeyBlock / kPage && is_stored(start, page + 1);
    return more ? page_at(start, page + 1) : page_at(start, 0) + a.values_offset;
  }
  const uint8_t* after_values(int64_t start, int64_t page) const {
    if (!is_stored(start, page + 1)) return page_at(start, page);
    const bool more = page + 1 < kKeyBlock / kPage;
    return page_at(start, page + 1) + (more ? a.values_offset : 0);
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
      if constexpr (!Stored::kInteger) {
        if (worth_converting()) {
          for (int64_t i = first * a.head_dim; i < tiles * a.head_dim; ++i) {
            S::store(key_page + i * kLanes, Stored::load(stored + i * kLanes));
          }
          score_queries<ConvertedPage<S>>(key_page, first, tiles, page, nullptr);
          continue;
        }
      }
      score_queries<Stored>(stored, first, tiles, page, after_keys(start, page));
    }
  }

  template <class From>
  void score_queries(const typename From::Element* keys, int64_t first, int64_t tiles, int64_t page,
                     const uint8_t* ahead) {
    for (int64_t i = 0; i < queries; i += Shape::kQueries) {
      score_some<From, Shape::kQueries>(at_most(queries - i, Shape::kQueries), i, keys, first,
                                        tiles, page, ahead);
    }
  }

  template <class From, int Q>
  void score_some(int64_t count, int64_t i, const typename From::Element* keys, int64_t first,
                  int64_t tiles, int64_t page, const uint8_t* ahead) {
    if constexpr (Q > 0) {
      if (count < Q) return score_some<From, Q - 1>(count, i, keys, first, tiles, page, ahead);
      float* to = scores + i * kKeyBlock + page * kPage;
      if constexpr (From::kInteger) {
        score_page_of_runs<S, From, Q, Shape::kTiles>(rounded + i, keys, first, tiles, a.head_dim,
                                                      ahead, to);
      } else {
        score_page<S, From, Q, Shape::kTiles>(query + i, keys, first, tiles, a.head_dim, ahead, to);
      }
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
      if constexpr (Stored::kInteger) {
        load_value_scales<S, Stored>(stored, a.head_dim, value_scales);
      }
      if (worth_converting()) {
        convert_page(stored, keys);
        weigh_queries<ConvertedPage<S>>(value_page, page, nullptr);
      } else {
        weigh_queries<Stored>(stored, page, after_values(start, page));
      }
    }
  }

  void convert_page(const Element* stored, const KeyRange& keys) {
    if constexpr (Stored::kInteger) {
      convert_values<S, Stored>(stored, value_scales, a.head_dim, keys.begin, keys.end, value_page);
    } else {
      for (int64_t i = keys.begin * width; i < keys.end * width; i += kLanes) {
        S::store(value_page + i, Stored::load(stored + i));
      }
    }
  }

  template <class From>
  void weigh_queries(const typename From::Element* values, int64_t page, const uint8_t* ahead) {
    for (int64_t i = 0; i < queries; i += Shape::kQueries) {
      weigh_group<From>(values, page, i, at_most(queries - i, Shape::kQueries), ahead);
    }
  }

  // The keys that all queries of the group share are read once; the ragged edges query by query,
  // the lower before and the upper after, so every query's chain ascends.
  template <class From>
  void weigh_group(const typename From::Element* values, int64_t page, int64_t first, int64_t count,
                   const uint8_t* ahead) {
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
    weigh_some<From, Shape::kQueries>(count, p, values, shared, ahead, to);
    for (int64_t i = 0; i < count; ++i) {
      weigh_one<From>(values, p, to, i, {shared.end, own[i].end});
    }
  }

  template <class From>
  void weigh_one(const typename From::Element* values, const float* p, float* to, int64_t i,
                 const KeyRange& keys) {
    weigh_some<From, 1>(1, p + i * kKeyBlock, values, keys,
                        reinterpret_cast<const uint8_t*>(values), to + i * width);
  }

  template <class From, int Q>
  void weigh_some(int64_t count, const float* p, const typename From::Element* values,
                  const KeyRange& keys, const uint8_t* ahead, float* to) {
    if constexpr (Q > 0) {
      if (count < Q) return weigh_some<From, Q - 1>(count, p, values, keys, ahead, to);
      if constexpr (From::kInteger) {
        weigh_page_of_runs<S, From, Q, Shape::kTiles>(p, values, value_scales, width, keys.begin,
                                                      keys.end, ahead, to);
      } else {
        weigh<S, From, Q, Shape::kTiles>(p, values, width, keys.begin, keys.end, ahead, to);
      }
    }
  }

  void merge(int64_t i) {
    if (range[i].begin == range[i].end) return;
    merge_block<S>(block_max[i], block_sum[i], block_out + i * width, width, maximum[i], sum[i],
                   out + i * width);
  }

  void record(int64_t i, int64_t block) {
    float* to = a.partials + i * a.partials_stride +
                (block - first_block(a.position, a.window)) * partial_floats(a.head_dim);
    to[0] = block_max[i];
    to[1] = block_sum[i];
    for (int64_t d = 0; d < width; d += kLanes) {
      S::store(to + kLanes + d, S::load(block_out + i * width + d));
    }
  }
};

template <class S, class Stored, class Shape>
void attend(const Attend& a) {
  Attention<S, Stored, Shape>(a).run();
}

}  // namespace fewbit
