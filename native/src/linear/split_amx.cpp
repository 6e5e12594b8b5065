// See split.h. One row is multiplied on vectors, since a tile would be read for it alone; more on
// tiles. Weights of two tiles are paired a chunk of inputs at a time into the first-level
// cache, and pass under 32 rows of inputs whose sums lie in tile registers; between chunks sums
// rest in the thread's memory. Inputs are taken a stretch at a time that stays in the second-level
// cache until all tiles of a group have had it.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "executor/memory.h"
#include "linear/kernels.h"
#include "linear/split.h"
#include "simd/avx512.h"
#include "simd/stream.h"
#include "simd/tiles.h"

namespace fewbit {

namespace {

using S = Avx512;

constexpr int64_t kPanel = 2 * kTile;  // rows, and outputs, of a block
constexpr int64_t kChunkRuns = 4;  // 8 KiB of paired weights: more were slower, for few rows most
constexpr int64_t kGroupTiles = 16;
constexpr size_t kStretchBytes = 400 << 10;
constexpr size_t kRunBytes = kPieces * kPieceBytes;
constexpr size_t kWeightBytes = kTileBytes;  // of a run: 32 inputs of 16 outputs

using Sums = float[kPanel][kPanel];

__m512i counted() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// The upper halves of 32 words.
FEWBIT_INLINE __m512i upper_halves(__m512i low, __m512i high) {
  const __m512i odd = S::add(S::mul(counted(), S::set1(0x00040004)), S::set1(0x00030001));
  return _mm512_permutex2var_epi16(low, odd, high);
}

struct Pieces {
  __m512i first, middle, last;
};

// Upper bits cut off are exact, and so is what is left of the value.
FEWBIT_INLINE Pieces pieces_of(__m512 x) {
  const __m512i upper = S::set1(static_cast<int32_t>(0xffff0000));
  const __m512i first = S::bit_and(S::bits(x), upper);
  const __m512 rest = S::sub(x, S::from_bits(first));
  const __m512i middle = S::bit_and(S::bits(rest), upper);
  return {first, middle, S::bits(S::sub(rest, S::from_bits(middle)))};
}

void split(const float* x, int64_t columns, const SplitActivations& a, int64_t row, int64_t first) {
  uint8_t* to = a.run(row, first) + row % kRowBlock * kVector;
  for (int64_t c = 0; c < columns; c += kGroup, to += kRunBytes) {
    const Pieces low = pieces_of(S::load(x + c)), high = pieces_of(S::load(x + c + kLanes));
    _mm512_store_si512(to, upper_halves(low.last, high.last));
    _mm512_store_si512(to + kPieceBytes, upper_halves(low.middle, high.middle));
    _mm512_store_si512(to + 2 * kPieceBytes, upper_halves(low.first, high.first));
  }
}

// One run of a tile's weights as pairs of successive inputs, one pair an output.
FEWBIT_INLINE void pair_run(const uint8_t* from, __m512i order, uint8_t* to) {
#pragma GCC unroll 16
  for (int p = 0; p < kTile; ++p) {
    const __m512i two = _mm512_loadu_si512(from + kVector * p);
    _mm512_store_si512(to + kVector * p, _mm512_permutexvar_epi16(order, two));
  }
}

// Word 2 r is output r's first weight of a pair, word 2 r + 1 its second one.
__m512i order_of_pairs() {
  const __m512i second = S::add(counted(), S::set1(kTileRows));
  return S::bit_or(counted(), S::template shift_left<16>(second));
}

// Pairs the weights of a chunk of runs: of each run those of the tiles, one after the other.
void pair_chunk(const PackedMatrix& w, int64_t tile, int tiles, int64_t run, int64_t runs,
                uint8_t* to) {
  const __m512i order = order_of_pairs();
  for (int t = 0; t < tiles; ++t) {
    const uint8_t* from =
        w.data + static_cast<size_t>(tile + t) * w.tile_bytes + run * kWeightBytes;
    for (int64_t i = 0; i < runs; ++i) {
      pair_run(from + i * kWeightBytes, order, to + i * kStepBytes + t * kTileBytes);
    }
  }
}

// Where the weights of a chunk lie in memory, for asking ahead of them: while products run, since
// pairing alone would leave memory idle in between.
struct Stream {
  const uint8_t* at;  // null where they were asked for already
  size_t tile_bytes;
};

template <int kTiles>
FEWBIT_INLINE void ask_ahead(const Stream& stream, int64_t run) {
  if (!stream.at) return;
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
    const uint8_t* from = stream.at + t * stream.tile_bytes + run * kWeightBytes;
#pragma GCC unroll 16
    for (int line = 0; line < kTile; ++line) prefetch_weights<S>(from + kVector * line);
  }
}

// Adds the products of some runs to the sums in tiles 0 to 3: 16 rows (or twice as many) times 16
// outputs (or twice as many).
template <int kBlocks, int kTiles>
FEWBIT_INLINE void add_runs(const uint8_t* a, size_t block_bytes, const uint8_t* b, int64_t runs,
                            const Stream& stream) {
  for (int64_t run = 0; run < runs; ++run, a += kRunBytes, b += kStepBytes) {
    ask_ahead<kTiles>(stream, run);
    _tile_loadd(6, b, 64);
    if constexpr (kTiles == 2) _tile_loadd(7, b + kTileBytes, 64);
#pragma GCC unroll 3
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint8_t* rows = a + piece * kPieceBytes;
      _tile_loadd(4, rows, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kTiles == 2) _tile_dpbf16ps(1, 4, 7);
      if constexpr (kBlocks == 2) {
        _tile_loadd(5, rows + block_bytes, 64);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kTiles == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
}

constexpr int64_t kStride = sizeof(float) * kPanel;

template <int kBlocks, int kTiles>
void block_of(const uint8_t* a, size_t block_bytes, const uint8_t* b, int64_t runs, bool more,
              const Stream& stream, Sums& sums) {
  if (more) {
    _tile_loadd(0, &sums[0][0], kStride);
    if constexpr (kTiles == 2) _tile_loadd(1, &sums[0][kTile], kStride);
    if constexpr (kBlocks == 2) _tile_loadd(2, &sums[kTile][0], kStride);
    if constexpr (kBlocks == 2 && kTiles == 2) _tile_loadd(3, &sums[kTile][kTile], kStride);
  } else {
    zero_sums();
  }
  add_runs<kBlocks, kTiles>(a, block_bytes, b, runs, stream);
  _tile_stored(0, &sums[0][0], kStride);
  if constexpr (kTiles == 2) _tile_stored(1, &sums[0][kTile], kStride);
  if constexpr (kBlocks == 2) _tile_stored(2, &sums[kTile][0], kStride);
  if constexpr (kBlocks == 2 && kTiles == 2) _tile_stored(3, &sums[kTile][kTile], kStride);
}

// Rows [begin, end) of a chunk's activations in panels of two row blocks; the first and the last
// block may have rows that are not asked for.
struct Rows {
  int64_t begin, end;

  int64_t first() const { return begin - begin % kRowBlock; }
  int64_t panels() const { return (end - first() + kPanel - 1) / kPanel; }
};

class Multiplier {
 public:
  Multiplier(const PackedMatrix& w, const SplitActivations& a, Rows rows, const float* bias,
             float* out, int64_t out_stride)
      : w_(w), a_(a), rows_(rows), bias_(bias), out_(out), out_stride_(out_stride) {
    constexpr size_t kPaired = kChunkRuns * kStepBytes;
    const size_t blocks = kGroupTiles / 2 * rows.panels();
    paired_ = scratch<Multiplier>(kPaired + blocks * sizeof(Sums));
    sums_ = reinterpret_cast<Sums*>(paired_ + kPaired);
    const auto fitting = static_cast<int64_t>(kStretchBytes / (2 * rows.panels() * kRunBytes));
    stretch_ = std::max<int64_t>(fitting / kChunkRuns, 1) * kChunkRuns;
    configure_whole_tiles();
  }
  ~Multiplier() { _tile_release(); }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

  // At most kGroupTiles of them.
  void tiles(int64_t begin, int64_t end) {
    for (int64_t run = 0; run < a_.runs(); run += stretch_) {
      const int64_t runs = std::min(stretch_, a_.runs() - run);
      Sums* sums = sums_;
      for (int64_t tile = begin; tile < end; tile += 2, sums += rows_.panels()) {
        stretch_of(tile, static_cast<int>(std::min<int64_t>(2, end - tile)), run, runs, sums);
      }
    }
  }

 private:
  // Some runs of one or two tiles under all rows.
  void stretch_of(int64_t tile, int count, int64_t begin, int64_t all, Sums* sums) const {
    for (int64_t run = begin; run < begin + all; run += kChunkRuns) {
      const int64_t runs = std::min(kChunkRuns, begin + all - run);
      pair_chunk(w_, tile, count, run, runs, paired_);
      // The tile loads are asm that does not say which memory it reads.
      __asm__ volatile("" ::: "memory");
      for (int64_t panel = 0; panel < rows_.panels(); ++panel) {
        const int64_t row = rows_.first() + panel * kPanel;
        const uint8_t* from = w_.data + tile * w_.tile_bytes + run * kWeightBytes;
        const Stream stream{panel ? nullptr : from, w_.tile_bytes};
        multiply(row, run, runs, count, stream, sums[panel]);
        if (run + runs < a_.runs()) continue;
        __asm__ volatile("" ::: "memory");
        for (int t = 0; t < count; ++t) finish(row, tile + t, t, sums[panel]);
      }
    }
  }

  void multiply(int64_t row, int64_t run, int64_t runs, int tiles, const Stream& stream,
                Sums& sums) const {
    const uint8_t* a = a_.run(row, run * kGroup);
    const size_t block_bytes = a_.runs() * kRunBytes;
    const bool two = row + kRowBlock < rows_.end;
    if (two && tiles == 2)
      return block_of<2, 2>(a, block_bytes, paired_, runs, run > 0, stream, sums);
    if (two) return block_of<2, 1>(a, block_bytes, paired_, runs, run > 0, stream, sums);
    if (tiles == 2) return block_of<1, 2>(a, block_bytes, paired_, runs, run > 0, stream, sums);
    block_of<1, 1>(a, block_bytes, paired_, runs, run > 0, stream, sums);
  }

  void finish(int64_t first, int64_t tile, int t, const Sums& sums) const {
    const auto to = TileOut<S>::at(w_, tile, bias_, out_, out_stride_);
    const int64_t begin = std::max(first, rows_.begin), end = std::min(first + kPanel, rows_.end);
    for (int64_t row = begin; row < end; ++row) {
      TileOut<S>::finish(to, row, S::load(sums[row - first] + t * kTile));
    }
  }

  const PackedMatrix& w_;
  const SplitActivations& a_;
  Rows rows_;
  const float* bias_;
  float* out_;
  int64_t out_stride_;
  uint8_t* paired_;
  Sums* sums_;
  int64_t stretch_;  // runs
};

// Vectors take subnormal numbers for 0 as tiles do, while this is there.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush | kDenormalsAreZero); }
  ~SubnormalsAreZero() { _mm_setcsr(before_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8000, kDenormalsAreZero = 0x0040;
  unsigned before_;
};

// Two inputs, each in all lanes.
struct Pair {
  __m512 even, odd;

  FEWBIT_INLINE Pair at(const uint8_t* p) {
    int32_t both;
    std::memcpy(&both, p, sizeof(both));
    return {S::from_bits(S::set1(both << 16)), S::from_bits(S::set1(both & ~0xffff))};
  }
};

// One row times some tiles.
template <int T>
void row_of_tiles(const PackedMatrix& w, int64_t tile, const SplitActivations& a, int64_t row,
                  const float* bias, float* out, int64_t out_stride) {
  const uint8_t* weights = w.data + static_cast<size_t>(tile) * w.tile_bytes;
  const uint8_t* x = a.run(row, 0) + row % kRowBlock * kVector;
  __m512 acc[T];
#pragma GCC unroll 2
  for (int t = 0; t < T; ++t) acc[t] = S::zero_f32();
  for (int64_t run = a.runs(); run; --run, weights += kWeightBytes, x += kRunBytes) {
    __m512 even[T][kPieces], odd[T][kPieces];
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 3
      for (int i = 0; i < kPieces; ++i) even[t][i] = odd[t][i] = S::zero_f32();
    }
#pragma GCC unroll 4
    for (int p = 0; p < kTile; ++p) {
      __m512 first[T], second[T];
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
        const uint8_t* from = weights + t * w.tile_bytes + kVector * p;
        prefetch_weights<S>(from);
        first[t] = S::load_bf16(from);
        second[t] = S::load_bf16(from + kVector / 2);
      }
#pragma GCC unroll 3
      for (int i = 0; i < kPieces; ++i) {
        const Pair in = Pair::at(x + i * kPieceBytes + 4 * p);
#pragma GCC unroll 2
        for (int t = 0; t < T; ++t) {
          even[t][i] = S::fma(first[t], in.even, even[t][i]);
          odd[t][i] = S::fma(second[t], in.odd, odd[t][i]);
        }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 3
      for (int i = 0; i < kPieces; ++i) acc[t] = S::add(acc[t], S::add(even[t][i], odd[t][i]));
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < T; ++t) {
    TileOut<S>::finish(TileOut<S>::at(w, tile + t, bias, out, out_stride), row, acc[t]);
  }
}

void multiply_row(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                  const SplitActivations& a, int64_t row, const float* bias, float* out,
                  int64_t out_stride) {
  const SubnormalsAreZero as_on_tiles;
  int64_t tile = tile_begin;
  for (; tile + 2 <= tile_end; tile += 2) {
    row_of_tiles<2>(w, tile, a, row, bias, out, out_stride);
  }
  if (tile < tile_end) row_of_tiles<1>(w, tile, a, row, bias, out, out_stride);
}

void multiply(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
              const SplitActivations& a, int64_t row_begin, int64_t row_end, const float* bias,
              float* out, int64_t out_stride) {
  if (row_end - row_begin == 1) {
    return multiply_row(w, tile_begin, tile_end, a, row_begin, bias, out, out_stride);
  }
  Multiplier multiplier(w, a, {row_begin, row_end}, bias, out, out_stride);
  for (int64_t tile = tile_begin; tile < tile_end; tile += kGroupTiles) {
    multiplier.tiles(tile, std::min(tile + kGroupTiles, tile_end));
  }
}

}  // namespace

extern const SplitKernels kAmxSplit = {split, multiply};

}  // namespace fewbit
