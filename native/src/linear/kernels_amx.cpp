// AMX for many rows: tiles of 16 activation rows x 32 inputs (the run as it lies in Activations)
// times 32 inputs x 16 outputs (a run's 8 quads, centred to signed bytes) give 16 x 16 exact dots;
// the float chain then follows in AVX-512. The AVX-512 kernels, which compute the same bits, take
// few rows, float weights, 8-bit asymmetric codes (u - z needs nine bits), scales for 16 inputs
// (Q2_K, Q3_K, Q6_K: two products of 16 inputs a run cost twice the tile traffic; 0.75 of AVX-512's
// speed, measured for Q6_K) and kHigh, which drafts read a few rows at a time.
#include <immintrin.h>

#include <cstring>

#include "linear/blocked.h"
#include "linear/table.h"
#include "simd/avx512.h"

namespace fewbit {

extern const LinearKernels kAvx512Kernels;

namespace {

using S = Avx512;

// Fewer rows stream faster through the AVX-512 kernels. Measured.
constexpr int64_t kLeastRows = 17;

// Products in flight: dots are read back this many runs after they were started.
constexpr int kDelay = 2;
constexpr int kBuffers = 2 * kDelay;

// How many runs ahead activations are asked for: they come from the second-level cache.
constexpr int kRunsAhead = 4;

// Tile registers: 0, 1 dots of 16 rows; 2, 3 their activations; 4, 5 weights; 6 dots and 7
// activations of a block with fewer rows.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void configure(int fewer_rows) {
  TileConfig config;
  const auto set = [&config](int tile, int rows, int row_bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  };
  set(0, 16, 64);
  set(1, 16, 64);
  set(2, 16, kGroup);
  set(3, 16, kGroup);
  set(4, kQuads, 64);
  set(5, kQuads, 64);
  set(6, fewer_rows, 64);
  set(7, fewer_rows, kGroup);
  // The intrinsic claims to read 8 bytes only, and the compiler would drop the others.
  __asm__ volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

template <Scaling K>
struct alignas(kVector) SignedTile {
  int8_t codes[kChunkRuns][kQuads][kVector];
  UnpackedScales<K> scales[kChunkRuns];
};

template <Codes C, Scaling K>
__m512i zero_of(const RunScales<S, K>& scales) {
  if constexpr (K == Scaling::kAsymmetric) return S::mul(scales.zero, S::set1(0x01010101));
  if constexpr (has_minimum(K)) return S::zero_i32();
  return S::set1_u8(centre_of(C));
}

template <Codes C, int V>
FEWBIT_INLINE void store_signed_pair(const RunCodes& codes, __m512i zero, int8_t (*out)[kVector]) {
  __m512i low, high;
  unpack_pair<S, C, V>(codes, low, high);
  S::store_u8(out[V], S::sub_u8(low, zero));
  S::store_u8(out[V + 4], S::sub_u8(high, zero));
}

template <Codes C, Scaling K>
void unpack_signed(Walker<S, C, K>& walker, int runs, SignedTile<K>& to) {
  for (int i = 0; i < runs; ++i) {
    const RunCodes codes = Walker<S, C, K>::step(walker);
    prefetch_codes<S, C>(codes, 0, 4);
    const __m512i zero = zero_of<C, K>(walker.scales);
    store_signed_pair<C, 0>(codes, zero, to.codes[i]);
    store_signed_pair<C, 1>(codes, zero, to.codes[i]);
    store_signed_pair<C, 2>(codes, zero, to.codes[i]);
    store_signed_pair<C, 3>(codes, zero, to.codes[i]);
    store_scales<S, K>(walker.scales, to.scales[i]);
  }
}

using Dots = int32_t[kRowBlock][kLanes];

// Starts the dots of one run and sends them to `to`. `kSet` picks the tile registers.
template <int kSet>
FEWBIT_INLINE void multiply_run(const int8_t* q, const int8_t* codes, Dots& to) {
  if constexpr (kSet == 0) {
    _tile_loadd(2, q, kGroup);
    _tile_loadd(4, codes, kVector);
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, to, kVector);
  } else if constexpr (kSet == 1) {
    _tile_loadd(3, q, kGroup);
    _tile_loadd(5, codes, kVector);
    _tile_zero(1);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, to, kVector);
  } else {
    _tile_loadd(7, q, kGroup);
    _tile_loadd(4, codes, kVector);
    _tile_zero(6);
    _tile_dpbssd(6, 7, 4);
    _tile_stored(6, to, kVector);
  }
}

// Adds one run of row r: the float part of the chain.
template <Scaling K>
FEWBIT_INLINE __m512 finish_row(__m512 acc, const Dots& dots, const SignedTile<K>& tile, int run,
                                const RunInputs& in, int r) {
  return add_part<S, K>(acc, S::load(dots[r]), in, load_scales<S, K>(tile.scales[run]), r, 0);
}

// A whole block of 16 rows: the accumulators stay in registers.
template <Scaling K>
void block_of_16(const SignedTile<K>& tile, const TileOut<S>& to, RunInputs in, const Span& span,
                 bool ahead) {
  alignas(kVector) Dots buffers[kBuffers];
  __m512 acc[kRowBlock];
#pragma GCC unroll 16
  for (int r = 0; r < kRowBlock; ++r) acc[r] = S::zero_f32();
  if (!span.first) {
#pragma GCC unroll 16
    for (int r = 0; r < kRowBlock; ++r) acc[r] = TileOut<S>::load(to, span.row + r);
  }
  const int64_t step = kGroup * in.stride;
  const int8_t* q = in.q;
  const auto add = [&](unsigned run) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRowBlock; ++r) {
      acc[r] = finish_row<K>(acc[r], buffers[run % kBuffers], tile, run, in, r);
    }
    RunInputs::advance(in);
  };
  const unsigned runs = static_cast<unsigned>(span.runs);
  const unsigned even = runs & ~1u;
  for (unsigned run = 0; run < even; run += 2, q += 2 * step) {
    multiply_run<0>(q, tile.codes[run][0], buffers[run % kBuffers]);
    multiply_run<1>(q + step, tile.codes[run + 1][0], buffers[(run + 1) % kBuffers]);
    if (ahead) {
      for (int line = 0; line < 2 * kRowBlock * kGroup; line += kVector) {
        S::prefetch(q + kRunsAhead * step + line);
      }
    }
    if (run) {
      add(run - 2);
      add(run - 1);
    }
  }
  if (runs != even) multiply_run<0>(q, tile.codes[even][0], buffers[even % kBuffers]);
  if (even) {
    add(even - 2);
    add(even - 1);
  }
  if (runs != even) add(even);
  if (span.last) {
#pragma GCC unroll 16
    for (int r = 0; r < kRowBlock; ++r) TileOut<S>::finish(to, span.row + r, acc[r]);
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < kRowBlock; ++r) TileOut<S>::store(to, span.row + r, acc[r]);
  }
}

// Fewer rows of a block: the accumulators lie in memory.
template <Scaling K>
void block_of_fewer(const SignedTile<K>& tile, const TileOut<S>& to, RunInputs in, const Span& span,
                    int rows) {
  alignas(kVector) Dots buffers[kBuffers];
  alignas(kVector) float acc[kRowBlock][kLanes];
  for (int r = 0; r < rows; ++r) {
    S::store(acc[r], span.first ? S::zero_f32() : TileOut<S>::load(to, span.row + r));
  }
  const int8_t* q = in.q;
  for (int run = 0; run < span.runs + kDelay; ++run) {
    if (run < span.runs) {
      multiply_run<2>(q, tile.codes[run][0], buffers[run % kBuffers]);
      q += kGroup * in.stride;
    }
    if (run < kDelay) continue;
    const int ready = run - kDelay;
    for (int r = 0; r < rows; ++r) {
      S::store(acc[r],
               finish_row<K>(S::load(acc[r]), buffers[ready % kBuffers], tile, ready, in, r));
    }
    RunInputs::advance(in);
  }
  for (int r = 0; r < rows; ++r) {
    if (span.last) {
      TileOut<S>::finish(to, span.row + r, S::load(acc[r]));
    } else {
      TileOut<S>::store(to, span.row + r, S::load(acc[r]));
    }
  }
}

template <Codes C, Scaling K>
class TileMultiplier {
 public:
  TileMultiplier(const PackedMatrix& w, const Activations& a, const float* bias, float* out,
                 int64_t out_stride)
      : w_(w), a_(a), bias_(bias), out_(out), out_stride_(out_stride) {
    configure(fewer_rows_);
  }
  ~TileMultiplier() { _tile_release(); }
  TileMultiplier(const TileMultiplier&) = delete;
  TileMultiplier& operator=(const TileMultiplier&) = delete;

  void tiles(int64_t tile, int count, int64_t row_begin, int64_t row_end) {
    SignedTile<K> unpacked[kBlockTiles];
    StepBuffer<K> buffers[kBlockTiles];
    Walker<S, C, K> walkers[kBlockTiles];
    for (int t = 0; t < count; ++t) {
      walkers[t] = Walker<S, C, K>::start(w_, tile + t, buffers[t]);
    }
    const int64_t runs = w_.columns / kGroup;
    for (int64_t done = 0; done < runs; done += kChunkRuns) {
      const int chunk = static_cast<int>(runs - done < kChunkRuns ? runs - done : kChunkRuns);
      for (int t = 0; t < count; ++t) unpack_signed<C, K>(walkers[t], chunk, unpacked[t]);
      // The tile loads below are asm that does not say which memory it reads.
      __asm__ volatile("" ::: "memory");
      for (int64_t row = row_begin; row < row_end;) {
        const Span span{row, chunk, done == 0, done + chunk == runs};
        const int rows = static_cast<int>(piece_of(row, row_end, kRowBlock));
        for (int t = 0; t < count; ++t) piece(unpacked[t], tile + t, span, done, rows);
        row += rows;
      }
    }
  }

 private:
  void piece(const SignedTile<K>& unpacked, int64_t tile, const Span& span, int64_t run, int rows) {
    const auto to = TileOut<S>::at(w_, tile, bias_, out_, out_stride_);
    const RunInputs in = RunInputs::at(a_, span.row, run);
    if (rows == kRowBlock) return block_of_16<K>(unpacked, to, in, span, tile % 2 == 0);
    if (rows != fewer_rows_) {
      fewer_rows_ = rows;
      configure(rows);
    }
    block_of_fewer<K>(unpacked, to, in, span, rows);
  }

  const PackedMatrix& w_;
  const Activations& a_;
  const float* bias_;
  float* out_;
  int64_t out_stride_;
  int fewer_rows_ = 1;
};

constexpr bool fits_tiles(Codes codes, Scaling scaling) {
  const bool nine_bits = codes == Codes::kBits8 && scaling == Scaling::kAsymmetric;
  return scaling != Scaling::kNone && scaling != Scaling::kHigh && !nine_bits &&
         !has_halves(scaling);
}

void multiply_amx(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const Activations& a,
                  int64_t row_begin, int64_t row_end, const float* bias, float* out,
                  int64_t out_stride) {
  if (!fits_tiles(w.codes, w.scaling) || row_end - row_begin < kLeastRows) {
    return kAvx512Kernels.multiply(w, tile_begin, tile_end, a, row_begin, row_end, bias, out,
                                   out_stride);
  }
  with_integer_format(w, [&]<Codes C, Scaling K>() {
    if constexpr (fits_tiles(C, K)) {
      TileMultiplier<C, K> multiplier(w, a, bias, out, out_stride);
      for (int64_t tile = tile_begin; tile < tile_end; tile += kBlockTiles) {
        const int64_t left = tile_end - tile;
        multiplier.tiles(tile, static_cast<int>(left < kBlockTiles ? left : kBlockTiles), row_begin,
                         row_end);
      }
    }
  });
}

}  // namespace

extern const LinearKernels kAmxKernels = {kAvx512Kernels.quantize, kAvx512Kernels.quantize_with,
                                          kAvx512Kernels.scale_of_row, multiply_amx};

}  // namespace fewbit
