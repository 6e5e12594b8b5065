// usage: same_bits [instruction set]
// Compares what the tables of an instruction set compute with what the portable ones do, bit for
// bit, on random and adversarial input: lanes, rounding of activations, every packed format,
// attention over every store, the passes over logits, and X^T X. The Python tests do this and more
// where Python runs; this program needs a C++ compiler and an emulator only.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gram/gram.h"
#include "linear/layout.h"
#include "linear/linear.h"
#include "linear/table.h"
#include "ops/ops.h"
#include "sampling/row_kernels.h"
#include "simd/probes.h"
#include "values.h"

namespace fewbit {

namespace {

// --- lanes ---------------------------------------------------------------------------------------

void compare_lanes(const SimdProbes& s, const SimdProbes& truth) {
  constexpr int64_t kCount = 1 << 15;
  const Floats wild = adversarial_floats(kCount);
  const Floats tame = random_floats(kCount, 10.0f);
  Floats got(kCount), want(kCount);
  for (int f = 0; f <= static_cast<int>(Unary::kHalf); ++f) {
    for (const Floats* x : {&wild, &tame}) {
      s.unary(static_cast<Unary>(f), x->data(), kCount, got.data());
      truth.unary(static_cast<Unary>(f), x->data(), kCount, want.data());
      compare("function " + std::to_string(f), got, want);
    }
  }
  const Floats factors = random_floats(kCount), terms = adversarial_floats(kCount);
  for (const Floats* c : {&tame, &terms}) {
    s.fma(wild.data(), factors.data(), c->data(), kCount, got.data());
    truth.fma(wild.data(), factors.data(), c->data(), kCount, want.data());
    compare("fma", got, want);
  }
  std::vector<uint16_t> halves(1 << 16), made(kCount), expected(kCount);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  Floats from(halves.size()), from_truth(halves.size());
  s.from_half(halves.data(), 1 << 16, from.data());
  truth.from_half(halves.data(), 1 << 16, from_truth.data());
  compare("from half", from, from_truth);
  s.to_half(wild.data(), kCount, made.data());
  truth.to_half(wild.data(), kCount, expected.data());
  compare("to half", made, expected);
  Floats sums(kCount / 16), sums_truth(kCount / 16), maxima(kCount / 16), maxima_truth(kCount / 16);
  s.reduce(tame.data(), kCount, sums.data(), maxima.data());
  truth.reduce(tame.data(), kCount, sums_truth.data(), maxima_truth.data());
  compare("sums", sums, sums_truth);
  compare("maxima", maxima, maxima_truth);
}

void compare_dots(const SimdProbes& s, const SimdProbes& truth) {
  for (int i = 0; i < 2000; ++i) {
    const bool narrow = i % 2;
    Bytes u = random_bytes(64), q = random_bytes(64);
    if (i < 8) u.assign(64, i % 4 < 2 ? 255 : 0), q.assign(64, i < 4 ? 0x80 : 0x7f);
    if (narrow) {
      for (uint8_t& v : u) v &= 0x7f;
    }
    std::vector<int32_t> start(16), got(16), want(16);
    for (int32_t& v : start) v = static_cast<int32_t>(random_bits());
    const auto* inputs = reinterpret_cast<const int8_t*>(q.data());
    s.dot4(start.data(), u.data(), inputs, narrow, got.data());
    truth.dot4(start.data(), u.data(), inputs, narrow, want.data());
    compare(narrow ? "narrow dot" : "dot", got, want);
  }
}

// --- linear layers -------------------------------------------------------------------------------

struct Rows {
  Bytes memory;
  Activations a;
  Bytes contents;

  Rows(const Floats& x, int64_t columns, const LinearKernels& kernels) {
    const int64_t rows = static_cast<int64_t>(x.size()) / columns;
    memory.resize(activation_bytes(rows, columns) + kVector);
    void* start = memory.data();
    size_t room = memory.size();
    a = activations_in(std::align(kVector, 1, start, room), rows, columns,
                       const_cast<float*>(x.data()));
    for (int64_t r = 0; r < rows; ++r) kernels.quantize(x.data() + r * columns, a, r);
    const auto* first = static_cast<const uint8_t*>(start);  // aligned: not where `memory` begins
    contents.assign(first, first + activation_bytes(rows, columns));
  }
};

void compare_rounding(const LinearKernels& s, const LinearKernels& truth) {
  constexpr int64_t kColumns = 96;
  Floats x = random_floats(40 * kColumns);
  for (int64_t i = 0; i < 32; ++i) x[i] = 1e-44f;                              // a subnormal scale
  for (int64_t i = 32; i < 64; ++i) x[i] = static_cast<float>(i - 48) + 0.5f;  // ties
  for (int64_t i = 64; i < 96; ++i) x[i] = 0.0f;
  const Rows got(x, kColumns, s), want(x, kColumns, truth);
  compare("rounded activations", got.contents, want.contents);
  const auto with_one_scale = [&](const LinearKernels& kernels) {
    Rows rows(x, kColumns, kernels);
    for (int64_t r = 0; r < 40; ++r) {
      const float* from = x.data() + r * kColumns;
      const float scale = r % 2 ? 0.02f : kernels.scale_of_row(from, kColumns);
      kernels.quantize_with(from, rows.a, r, scale);
    }
    const auto* codes = reinterpret_cast<const uint8_t*>(rows.a.q);
    return Bytes(codes, codes + activation_bytes(40, kColumns));
  };
  compare("activations of one scale", with_one_scale(s), with_one_scale(truth));
}

constexpr int64_t kColumns = 768;  // more than a chunk of 512
constexpr int64_t kOutputs = 53;

// A matrix of random codes whose scales are finite: bit 6 of a half's upper byte is the top of its
// exponent, and one-byte exponents stay near 1.
PackedMatrix random_matrix(Codes codes, Scaling scaling, Bytes& memory) {
  PackedMatrix w{codes, scaling, kOutputs, kColumns, steps_bytes(scaling) > 0 ? 256 : 32,
                 0,     nullptr};
  w.tile_bytes = tile_bytes(codes, scaling, kColumns, w.group);
  const size_t heads = static_cast<size_t>(w.tiles()) * w.tile_bytes;
  const size_t size = matrix_bytes(w);
  memory = random_bytes(size + kVector);
  void* start = memory.data();
  size_t room = memory.size();
  auto* data = static_cast<uint8_t*>(std::align(kVector, size, start, room));
  if (scaling == Scaling::kNone) {
    for (size_t i = 0; i < size; ++i) data[i] = i % 2 ? data[i] & 0xbf : data[i];
  } else {
    const size_t group = group_bytes(codes, scaling, w.group);
    for (size_t i = 0; i < heads; ++i) {
      if (i % group >= head_bytes(scaling)) continue;
      if (head_bytes(scaling) == kTileRows) {
        data[i] = static_cast<uint8_t>(120 + data[i] % 16);
      } else if (i % 2) {
        data[i] &= 0xbf;
      }
    }
  }
  w.data = data;
  return w;
}

// Whether there is a kernel for the pair.
bool is_read(Codes codes, Scaling scaling) {
  const PackedMatrix w{codes, scaling, 0, 0, 0, 0, nullptr};
  if (scaling == Scaling::kNone) return codes >= Codes::kF32 && codes <= Codes::kF8E4m3;
  return with_integer_format(w, []<Codes, Scaling>() {});
}

void compare_products(Codes codes, Scaling scaling, const LinearKernels& s,
                      const LinearKernels& truth) {
  Bytes memory;
  const PackedMatrix w = random_matrix(codes, scaling, memory);
  const Floats bias = random_floats(kOutputs);
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40}) {
    const Floats x = random_floats(rows * kColumns);
    const Rows got_rows(x, kColumns, s), want_rows(x, kColumns, truth);
    Floats got(static_cast<size_t>(rows * kOutputs)), want(got.size());
    s.multiply(w, 0, w.tiles(), got_rows.a, 0, rows, bias.data(), got.data(), kOutputs);
    truth.multiply(w, 0, w.tiles(), want_rows.a, 0, rows, bias.data(), want.data(), kOutputs);
    compare("codes " + std::to_string(static_cast<int>(codes)) + ", scaling " +
                std::to_string(static_cast<int>(scaling)) + ", rows " + std::to_string(rows),
            got, want);
  }
}

int compare_linear(const LinearKernels& s, const LinearKernels& truth) {
  int formats = 0;
  for (int c = 0; c < 32; ++c) {
    for (int k = 0; k < 32; ++k) {
      const auto codes = static_cast<Codes>(c);
      const auto scaling = static_cast<Scaling>(k);
      if (!is_read(codes, scaling)) continue;
      compare_products(codes, scaling, s, truth);
      ++formats;
    }
  }
  return formats;
}

// --- between the linear layers -------------------------------------------------------------------

void compare_elementwise(const OpKernels& s, const OpKernels& truth) {
  for (const int64_t n : {1, 15, 16, 50, 256}) {
    const Floats x = random_floats(n, 4.0f), y = random_floats(n);
    Floats got(static_cast<size_t>(n)), want(got.size());
    const auto check = [&](const char* what, auto call) {
      call(s, got);
      call(truth, want);
      compare(what, got, want);
    };
    check("norm", [&](const OpKernels& k, Floats& out) {
      k.rms_norm(x.data(), y.data(), n, 1e-5f, out.data());
    });
    check("sum",
          [&](const OpKernels& k, Floats& out) { k.add(x.data(), y.data(), n, out.data()); });
    check("silu",
          [&](const OpKernels& k, Floats& out) { k.silu_gate(x.data(), y.data(), n, out.data()); });
    check("gelu",
          [&](const OpKernels& k, Floats& out) { k.gelu_gate(x.data(), y.data(), n, out.data()); });
    check("softcap",
          [&](const OpKernels& k, Floats& out) { k.softcap(x.data(), 3.0f, n, out.data()); });
    if (n >= 16 && n % 16 == 0) {
      check("hadamard",
            [&](const OpKernels& k, Floats& out) { k.hadamard(x.data(), n, out.data()); });
    }
    if (n % 2 == 0) {
      check("rope",
            [&](const OpKernels& k, Floats& out) { k.rope(x.data(), y.data(), n, out.data()); });
    }
  }
}

// Four query heads on one key head, rows whose keys span two blocks of 256.
void compare_attention(const StoreKernels& s, const StoreKernels& truth, size_t key_bytes,
                       size_t value_bytes, int64_t head_dim) {
  constexpr int64_t kKeys = 320, kHeads = 4;
  const int64_t pages = kKeys / kPage;
  const size_t page = key_bytes + value_bytes;
  Bytes got_store(pages * page), want_store(pages * page);
  std::vector<int32_t> order;
  for (int64_t p = 0; p < pages; ++p) order.push_back(static_cast<int32_t>(pages - 1 - p));
  for (int64_t position = 0; position < kKeys; ++position) {
    const Floats key = random_floats(head_dim), value = random_floats(head_dim);
    const size_t at = static_cast<size_t>(order[position / kPage]) * page;
    const int64_t slot = position % kPage;
    s.store_key(key.data(), head_dim, slot, got_store.data() + at);
    s.store_value(value.data(), head_dim, slot, got_store.data() + at + key_bytes);
    truth.store_key(key.data(), head_dim, slot, want_store.data() + at);
    truth.store_value(value.data(), head_dim, slot, want_store.data() + at + key_bytes);
  }
  compare("store", got_store, want_store);
  for (const int64_t rows : {1, 3, 9}) {
    const int64_t width = kHeads * head_dim;
    const Floats q = random_floats(rows * width);
    Floats got(q.size()), want(q.size()), scratch(attend_scratch_floats(head_dim));
    Attend a{};
    a.q = q.data();
    a.q_stride = a.out_stride = width;
    a.rows = rows;
    a.heads = kHeads;
    a.head_dim = head_dim;
    a.position = kKeys - rows;
    a.scale = 0.2f;
    a.pages = order.data();
    a.page_stride = page;
    a.values_offset = key_bytes;
    a.block_end = end_block(kKeys - 1);
    a.scratch = scratch.data();
    a.store = want_store.data();
    a.out = got.data();
    s.attend(a);
    a.out = want.data();
    truth.attend(a);
    compare("attention, rows " + std::to_string(rows), got, want);
  }
}

void compare_stores(const OpKernels& s, const OpKernels& truth) {
  for (const int64_t head_dim : {32, 64, 96}) {
    for (int type = 0; type < kCacheTypes; ++type) {
      const auto cache = static_cast<CacheType>(type);
      compare_attention(s.store[type], truth.store[type], page_key_bytes(cache, head_dim),
                        page_value_bytes(cache, head_dim), head_dim);
    }
  }
}

// --- logits --------------------------------------------------------------------------------------

void compare_logits(const RowKernels& s, const RowKernels& truth) {
  constexpr int64_t kCount = 1000, kBlocks = kCount / kVocabularyBlock;
  const Floats x = random_floats(kCount, 8.0f);
  Floats got(kBlocks + 1), want(kBlocks + 1);
  s.scan(x.data(), kCount, got.data());
  truth.scan(x.data(), kCount, want.data());
  compare("maxima of logits", got, want);
  Floats values = x, values_truth = x, mass(kCount), mass_truth(kCount);
  std::vector<double> sums(kBlocks), sums_truth(kBlocks);
  s.exponentiate(x.data(), values.data(), kBlocks, 20.0f, 0.7f, mass.data(), sums.data());
  truth.exponentiate(x.data(), values_truth.data(), kBlocks, 20.0f, 0.7f, mass_truth.data(),
                     sums_truth.data());
  compare("scaled logits", values, values_truth);
  compare("masses", mass, mass_truth);
  compare("sums of masses", sums, sums_truth);
  std::vector<double> short_sums(kBlocks + 1), short_truth(kBlocks + 1);
  s.sum(x.data(), kCount, short_sums.data());
  truth.sum(x.data(), kCount, short_truth.data());
  compare("sums of weights", short_sums, short_truth);
  s.remainder(mass.data(), 0.9, x.data(), 0.01, kBlocks, sums.data());
  truth.remainder(mass.data(), 0.9, x.data(), 0.01, kBlocks, sums_truth.data());
  compare("sums of remainders", sums, sums_truth);
}

void compare_gram(const GramKernels& got, const GramKernels& want) {
  const int64_t rows = 200, columns = 50;
  const Floats x = random_floats(rows * columns);
  const auto gram = [&](const GramKernels& kernels) {
    Bytes panel(kernels.panel_bytes);
    Floats sums(columns * columns);
    kernels.pack(x.data(), columns, rows, columns, panel.data());
    kernels.multiply(panel.data(), panel.data(), rows, columns, columns, sums.data(), columns);
    return sums;
  };
  compare("X^T X", gram(got), gram(want));
}

int run(Isa isa, std::string_view name) {
  if (!isa_available(isa)) {
    std::fprintf(stderr, "same_bits: this CPU has no %s.\n", name.data());
    return 2;
  }
  const Isa portable = Isa::kPortable;
  compare_lanes(simd_probes(isa), simd_probes(portable));
  compare_dots(simd_probes(isa), simd_probes(portable));
  compare_rounding(linear_kernels(isa), linear_kernels(portable));
  const int formats = compare_linear(linear_kernels(isa), linear_kernels(portable));
  compare_elementwise(op_kernels(isa), op_kernels(portable));
  compare_stores(op_kernels(isa), op_kernels(portable));
  compare_logits(row_kernels(isa), row_kernels(portable));
  compare_gram(gram_kernels(isa), gram_kernels(portable));
  std::printf("%s: %d comparisons with the portable kernels (%d weight formats), %d differ\n",
              name.data(), comparisons, formats, differences);
  return differences ? 1 : 0;
}

}  // namespace

}  // namespace fewbit

int main(int count, char** words) {
  const std::string_view name = count == 2 ? words[1] : "";
  if (name == "neon") return fewbit::run(fewbit::Isa::kNeon, name);
  if (name == "avx2") return fewbit::run(fewbit::Isa::kAvx2, name);
  if (name == "avx512vnni") return fewbit::run(fewbit::Isa::kAvx512Vnni, name);
  std::fprintf(stderr, "usage: same_bits neon|avx2|avx512vnni\n");
  return 2;
}
