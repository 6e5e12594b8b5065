// Sampling for Python: fewbit.sampling is its only user and documents it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "sampling/block.h"
#include "sampling/philox.h"
#include "sampling/threads.h"
#include "simd/float_environment.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fewbit {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WriteRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Detail = std::tuple<double, double, std::vector<int32_t>, std::vector<double>>;
using Result =
    std::tuple<std::vector<int32_t>, int64_t, std::vector<Detail>, const char*, int64_t, int64_t>;

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

TokenSampler make_sampler(double temperature, int64_t top_k, double top_p, double min_p,
                          double repetition, double frequency, double presence,
                          const std::vector<int32_t>& biased, const std::vector<double>& bias,
                          uint64_t seed, uint64_t sample,
                          std::shared_ptr<ScriptedNumbers> numbers) {
  require(biased.size() == bias.size(), "biased and bias must be of one length");
  require(static_cast<float>(repetition) > 0, "the repetition penalty is not above 0");
  TokenSampler sampler{};
  sampler.numbers = std::move(numbers);
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
      distribution.shape({logits.data(), vocabulary}, sampler.rule, sampler.history);
  if (fault == SamplingFault::kNone) distribution.probabilities(out);
  const nb::ndarray<nb::numpy, double, nb::ndim<1>> array(out, {logits.shape(0)}, owner);
  return nb::make_tuple(array, fault_name(fault), distribution.where());
}

Judge judge_named(const std::string& name) {
  if (name == "match") return Judge::kMatch;
  if (name == "token") return Judge::kToken;
  require(name == "block", "a verifier is none of match, token and block");
  return Judge::kBlock;
}

// A block as Python gives it: sampler, row, position, draft, top_logprobs, verifier, what was
// drafted from and over which ids, a mask for each row, and the branches: depth and tokens.
using GivenBranches = std::vector<std::pair<int64_t, std::vector<int32_t>>>;
using GivenBlock =
    std::tuple<TokenSampler*, int64_t, int64_t, std::vector<int32_t>, int64_t, std::string,
               std::optional<Rows>, std::optional<Ids>, std::optional<Masks>, GivenBranches>;

// The masks of at least `rows` rows over ids up to `last`.
const uint32_t* mask_words(const std::optional<Masks>& masks, size_t rows, int64_t last) {
  if (!masks) return nullptr;
  require(masks->shape(0) >= rows, "there are fewer masks than rows");
  require(static_cast<int64_t>(masks->shape(1)) * 32 > last, "a mask is short of ids");
  return reinterpret_cast<const uint32_t*>(masks->data());
}

DrawnFrom drawn_from(const Rows& rows, const std::optional<Ids>& support, size_t drafted) {
  require(rows.shape(0) >= drafted, "there are fewer rows of probabilities than drafted tokens");
  DrawnFrom from{rows.data(), static_cast<int64_t>(rows.shape(1)), {}};
  if (!support) return from;
  require(support->shape(0) == rows.shape(1), "support must have an id for each probability");
  from.support = {support->data(), support->shape(0)};
  return from;
}

// Takes the branches over, and returns how many rows the block has with them.
size_t take_branches(BlockRequest& request, GivenBranches given) {
  size_t count = request.draft.size() + 1;
  for (auto& [depth, tokens] : given) {
    require(depth >= 0 && static_cast<size_t>(depth) <= request.draft.size() && !tokens.empty(),
            "a branch has no tokens, or leaves the draft where that has ended");
    count += tokens.size();
    request.branches.push_back({depth, std::move(tokens)});
  }
  return count;
}

void check_drawn_branches(const BlockRequest& request, int64_t vocabulary) {
  require(request.branches.empty() || request.judge == Judge::kToken,
          "only token verification judges branches that were drawn");
  for (const Branch& branch : request.branches) {
    require(branch.tokens.size() == 1 && static_cast<size_t>(branch.depth) < request.draft.size(),
            "a branch that was drawn has one token, in the place of one of the draft");
    require(0 <= branch.tokens[0] && branch.tokens[0] < vocabulary,
            "a drawn token is outside the vocabulary");
  }
}

BlockRequest make_request(GivenBlock& given, const Logits& logits, size_t rows) {
  auto& [sampler, row, position, draft, top, verifier, probabilities, support, masks, branches] =
      given;
  require(sampler != nullptr, "a sampler is None");
  BlockRequest request{sampler, row, position, std::move(draft), top, judge_named(verifier)};
  const size_t own = take_branches(request, std::move(branches));
  require(row >= 0 && static_cast<size_t>(row) + own <= rows,
          "a block reaches beyond the rows of the logits");
  request.allowed = mask_words(masks, own, logits.vocabulary - 1);
  request.allowed_words = masks ? static_cast<int64_t>(masks->shape(1)) : 0;
  if (request.judge == Judge::kMatch) return request;
  require(probabilities.has_value(), "a drafted block has no probabilities to be judged by");
  for (const int32_t token : request.draft)
    require(0 <= token && token < logits.vocabulary, "a drawn token is outside the vocabulary");
  check_drawn_branches(request, logits.vocabulary);
  request.drawn_from = drawn_from(*probabilities, support, request.draft.size());
  return request;
}

std::vector<Result> draw(SamplingThreads& threads, const Rows& rows, int64_t vocabulary,
                         std::vector<GivenBlock> blocks) {
  const Logits logits{rows.data(), static_cast<int64_t>(rows.shape(1)), vocabulary};
  require(0 < vocabulary && vocabulary <= logits.stride, "vocabulary must be in [1, columns]");
  std::vector<BlockRequest> requests;
  for (GivenBlock& block : blocks) requests.push_back(make_request(block, logits, rows.shape(0)));
  std::vector<BlockDraws> found;
  {
    const nb::gil_scoped_release release;
    found = threads.draw(logits, requests);
  }
  std::vector<Result> results;
  for (BlockDraws& draws : found) {
    std::vector<Detail> details;
    for (RowLogprobs& l : draws.logprobs)
      details.emplace_back(l.total, l.shifted, std::move(l.ids), std::move(l.others));
    results.emplace_back(std::move(draws.tokens), draws.branch, std::move(details),
                         fault_name(draws.fault), draws.row, draws.where);
  }
  return results;
}

// A draw for a draft: sampler, row, position, start, where what it is drawn from goes, a mask, and
// how many siblings are wanted.
using GivenDraw = std::tuple<TokenSampler*, int64_t, int64_t, int64_t, std::optional<WriteRow>,
                             std::optional<Masks>, int64_t>;
using ProposalResult = std::tuple<int32_t, std::vector<int32_t>, const char*, int64_t, int64_t>;

std::vector<ProposalResult> propose(SamplingThreads& threads, const Rows& rows, int64_t vocabulary,
                                    const std::optional<Ids>& support,
                                    const std::vector<GivenDraw>& given) {
  Logits logits{rows.data(), static_cast<int64_t>(rows.shape(1)), vocabulary};
  std::span<const int32_t> ids;
  if (support) {
    require(support->shape(0) == rows.shape(1), "support must have an id for each column");
    ids = {support->data(), support->shape(0)};
    logits.vocabulary = std::lower_bound(ids.begin(), ids.end(), vocabulary) - ids.begin();
  }
  logits.vocabulary = std::min(logits.vocabulary, logits.stride);
  require(logits.vocabulary > 0, "no column is in the vocabulary");
  std::vector<ProposalRequest> requests;
  const int64_t last =
      ids.empty() ? logits.vocabulary - 1 : ids[static_cast<size_t>(logits.vocabulary - 1)];
  for (const auto& [sampler, row, position, start, into, mask, siblings] : given) {
    require(sampler != nullptr, "a sampler is None");
    require(0 <= row && static_cast<size_t>(row) < rows.shape(0), "a row is not there");
    require(!into || into->shape(0) == rows.shape(1), "into must have a place for each column");
    requests.push_back({sampler, row, position, start, into ? into->data() : nullptr,
                        mask_words(mask, 1, last), siblings});
  }
  std::vector<ProposalDraw> found;
  {
    const nb::gil_scoped_release release;
    found = threads.propose(logits, ids, requests);
  }
  std::vector<ProposalResult> results;
  for (ProposalDraw& draw : found)
    results.emplace_back(draw.token, std::move(draw.siblings), fault_name(draw.fault), draw.row,
                         draw.where);
  return results;
}

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::class_<ScriptedNumbers>(module, "ScriptedNumbers")
      .def(nb::init<std::map<ScriptedNumbers::Key, double>>(), "numbers"_a)
      .def_prop_ro("asked", &ScriptedNumbers::asked);
  nb::class_<TokenSampler>(module, "TokenSampler")
      .def(
          "__init__",
          [](TokenSampler* self, double temperature, int64_t top_k, double top_p, double min_p,
             double repetition, double frequency, double presence,
             const std::vector<int32_t>& biased, const std::vector<double>& bias, uint64_t seed,
             uint64_t sample, std::shared_ptr<ScriptedNumbers> numbers) {
            new (self) TokenSampler(make_sampler(temperature, top_k, top_p, min_p, repetition,
                                                 frequency, presence, biased, bias, seed, sample,
                                                 std::move(numbers)));
          },
          nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a,
          "frequency_penalty"_a, "presence_penalty"_a, "biased"_a, "bias"_a, "seed"_a, "sample"_a,
          "numbers"_a = nb::none())
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
      .def(
          "uniform",
          [](const TokenSampler& self, int64_t position, uint64_t purpose, int64_t start) {
            return self.uniform(position, static_cast<Purpose>(purpose), start);
          },
          "position"_a, "purpose"_a, "start"_a = 0)
      .def("probabilities", &probabilities, "logits"_a, "vocabulary"_a, "isa"_a = nb::none());
  nb::class_<SamplingThreads>(module, "SamplingThreads")
      .def(nb::init<std::shared_ptr<ThreadPool>>(), "pool"_a.none())
      .def("draw", &draw, "logits"_a, "vocabulary"_a, "blocks"_a)
      .def("propose", &propose, "logits"_a, "vocabulary"_a, "support"_a.none(), "draws"_a);
  module.def("keyed_uniform", &keyed_uniform, "seed"_a, "sample"_a, "position"_a, "purpose"_a,
             "start"_a = 0);
}

}  // namespace fewbit
