// Sampling for Python: fewbit.sampling is its only user and documents it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings/bindings.h"
#include "sampling/block.h"
#include "sampling/philox.h"
#include "sampling/threads.h"
#include "simd/float_environment.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbit {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Detail = std::tuple<double, double, std::vector<int32_t>, std::vector<double>>;
using Result = std::tuple<std::vector<int32_t>, std::vector<Detail>, const char*, int64_t, int64_t>;

const char* fault_name(SamplingFault fault) {
  switch (fault) {
    case SamplingFault::kNotFinite:
      return "not_finite";
    case SamplingFault::kAllMasked:
      return "all_masked";
    default:
      return "";
  }
}

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

TokenSampler make_sampler(double temperature, int64_t top_k, double top_p, double min_p,
                          double repetition, double frequency, double presence,
                          const std::vector<int32_t>& biased, const std::vector<double>& bias,
                          uint64_t seed, uint64_t sample) {
  require(biased.size() == bias.size(), "biased and bias must be of one length");
  require(static_cast<float>(repetition) > 0, "the repetition penalty is not above 0");
  TokenSampler sampler{};
  sampler.rule = {static_cast<float>(temperature),
                  top_k,
                  top_p,
                  min_p,
                  static_cast<float>(repetition),
                  static_cast<float>(frequency),
                  static_cast<float>(presence),
                  {},
                  seed,
                  sample};
  for (size_t i = 0; i < biased.size(); ++i) {
    require(biased[i] >= 0, "a biased token id is negative");
    sampler.rule.bias.emplace_back(biased[i], static_cast<float>(bias[i]));
  }
  return sampler;
}

nb::tuple probabilities(const TokenSampler& sampler, const Row& logits, int64_t vocabulary,
                        const std::optional<std::string>& isa) {
  const auto width = static_cast<int64_t>(logits.shape(0));
  require(0 < vocabulary && vocabulary <= width, "vocabulary must be in [1, logits]");
  auto* out = new double[static_cast<size_t>(width)]();
  nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<double*>(p); });
  const FloatEnvironment environment;
  Distribution distribution(isa ? row_kernels(isa_named(*isa)) : best_row_kernels());
  const SamplingFault fault =
      distribution.shape(logits.data(), vocabulary, sampler.rule, sampler.history);
  if (fault == SamplingFault::kNone) distribution.probabilities(out);
  const nb::ndarray<nb::numpy, double, nb::ndim<1>> array(out, {logits.shape(0)}, owner);
  return nb::make_tuple(array, fault_name(fault), distribution.where());
}

std::vector<BlockRequest> make_requests(const Logits& logits,
                                        const std::vector<TokenSampler*>& samplers,
                                        const std::vector<int64_t>& rows,
                                        const std::vector<int64_t>& positions,
                                        std::vector<std::vector<int32_t>>& drafts,
                                        const std::vector<int64_t>& tops) {
  const size_t count = samplers.size();
  require(rows.size() == count && positions.size() == count && drafts.size() == count &&
              tops.size() == count,
          "a list is shorter than the list of samplers");
  std::vector<BlockRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    require(samplers[i] != nullptr, "a sampler is None");
    const auto last = rows[i] + static_cast<int64_t>(drafts[i].size());
    require(rows[i] >= 0 && last < static_cast<int64_t>(logits.shape(0)),
            "a block reaches beyond the rows of the logits");
    requests.push_back({samplers[i], rows[i], positions[i], std::move(drafts[i]), tops[i]});
  }
  return requests;
}

std::vector<Result> draw(SamplingThreads& threads, const Logits& logits, int64_t vocabulary,
                         const std::vector<TokenSampler*>& samplers,
                         const std::vector<int64_t>& rows, const std::vector<int64_t>& positions,
                         std::vector<std::vector<int32_t>> drafts,
                         const std::vector<int64_t>& tops) {
  const auto stride = static_cast<int64_t>(logits.shape(1));
  require(0 < vocabulary && vocabulary <= stride, "vocabulary must be in [1, columns of logits]");
  const auto requests = make_requests(logits, samplers, rows, positions, drafts, tops);
  std::vector<BlockDraws> found;
  {
    const nb::gil_scoped_release release;
    found = threads.draw(logits.data(), stride, vocabulary, requests);
  }
  std::vector<Result> results;
  for (BlockDraws& draws : found) {
    std::vector<Detail> details;
    for (RowLogprobs& l : draws.logprobs)
      details.emplace_back(l.total, l.shifted, std::move(l.ids), std::move(l.others));
    results.emplace_back(std::move(draws.tokens), std::move(details), fault_name(draws.fault),
                         draws.row, draws.where);
  }
  return results;
}

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::class_<TokenSampler>(module, "TokenSampler")
      .def(
          "__init__",
          [](TokenSampler* self, double temperature, int64_t top_k, double top_p, double min_p,
             double repetition, double frequency, double presence,
             const std::vector<int32_t>& biased, const std::vector<double>& bias, uint64_t seed,
             uint64_t sample) {
            new (self) TokenSampler(make_sampler(temperature, top_k, top_p, min_p, repetition,
                                                 frequency, presence, biased, bias, seed, sample));
          },
          nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a,
          "frequency_penalty"_a, "presence_penalty"_a, "biased"_a, "bias"_a, "seed"_a, "sample"_a)
      .def(
          "remember",
          [](TokenSampler& self, const std::vector<int32_t>& tokens, bool generated) {
            for (const int32_t token : tokens) {
              require(token >= 0, "a token id to remember is negative");
              self.remember(token, generated);
            }
          },
          "tokens"_a, nb::kw_only(), "generated"_a)
      .def("fork", [](const TokenSampler& self) { return TokenSampler(self); })
      .def("probabilities", &probabilities, "logits"_a, "vocabulary"_a, "isa"_a = nb::none());
  nb::class_<SamplingThreads>(module, "SamplingThreads")
      .def(nb::init<std::shared_ptr<ThreadPool>>(), "pool"_a.none())
      .def("draw", &draw, "logits"_a, "vocabulary"_a, "samplers"_a, "rows"_a, "positions"_a,
           "drafts"_a, "top_logprobs"_a);
  module.def("keyed_uniform", &keyed_uniform, "seed"_a, "sample"_a, "position"_a, "purpose"_a);
}

}  // namespace fewbit
