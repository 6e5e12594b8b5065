#include "executor/plan_stages.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace fewbit {

namespace {

// Columns up to which ops that need whole heads, groups of 32 or tiles of 16 are worth joining
// into one unit; beyond, a barrier costs less than the lost parallelism.
constexpr int64_t kLargestGranule = 256;

}  // namespace

StagePlanner::StagePlanner(const Program& program, int64_t chunk_rows) : program_(program) {
  plan_.chunk_rows = chunk_rows;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.width < 1) throw std::invalid_argument("a buffer of the program has no width.");
    plan_.values.push_back({Form::kFloats, buffer.width});
  }
}

int StagePlanner::new_value(Form form, int64_t width) {
  plan_.values.push_back({form, width});
  return static_cast<int>(plan_.values.size()) - 1;
}

const Value& StagePlanner::made(int value) const {
  if (value < 0 || value >= static_cast<int>(program_.buffers.size()) ||
      !plan_.values[value].made) {
    throw std::invalid_argument("an op reads a buffer that no earlier op writes.");
  }
  return plan_.values[value];
}

void StagePlanner::expect_unwritten(int out) const {
  if (out < 0 || out >= static_cast<int>(program_.buffers.size())) {
    throw std::invalid_argument("an op writes a buffer that the program does not have.");
  }
  if (plan_.values[out].made) {
    throw std::invalid_argument("two ops write the same buffer.");
  }
}

void StagePlanner::expect_width(int out, int64_t width) const {
  expect_unwritten(out);
  if (plan_.values[out].width != width) {
    throw std::invalid_argument("an op's result is not as wide as its buffer.");
  }
}

void StagePlanner::append(const Step& step, const Needs& needs, Domain domain) {
  std::vector<Stage>& stages = domain == Domain::kRows ? plan_.body : plan_.tail;
  const int last = static_cast<int>(stages.size()) - 1;
  std::vector<int> chains;
  if (last < 0 || !chains_to_join(step, needs, domain, last, chains)) {
    stages.push_back({domain, {}});
    chains.clear();
  }
  Stage& stage = stages.back();
  const int chain = chains.empty() ? new_chain(stage, needs) : join(stage, chains, needs);
  stage.chains[chain].steps.push_back(step);
  Value& value = plan_.values[step.out];
  value.made = true;
  value.domain = domain;
  value.first_stage = value.stage = static_cast<int>(stages.size()) - 1;
  value.chain = chain;
}

bool StagePlanner::made_in(int value, Domain domain, int stage) const {
  return plan_.values[value].domain == domain && plan_.values[value].stage == stage;
}

bool StagePlanner::chains_to_join(const Step& step, const Needs& needs, Domain domain, int last,
                                  std::vector<int>& chains) const {
  for (const int value : step.whole) {
    if (made_in(value, domain, last)) return false;
  }
  for (const int value : step.alongside) {
    if (!made_in(value, domain, last)) continue;
    const int chain = plan_.values[value].chain;
    if (std::find(chains.begin(), chains.end(), chain) == chains.end()) chains.push_back(chain);
  }
  std::sort(chains.begin(), chains.end());
  const Stage& stage = domain == Domain::kRows ? plan_.body[last] : plan_.tail[last];
  int64_t granule = needs.granule;
  for (const int chain : chains) {
    const Chain& other = stage.chains[chain];
    if (other.columns != needs.columns) return false;
    const int64_t wider = std::lcm(granule, other.granule);
    if (wider > std::max({kLargestGranule, other.granule, granule})) return false;
    if (needs.granule > kLargestGranule && other.granule < needs.granule) return false;
    granule = wider;
  }
  return true;
}

int StagePlanner::new_chain(Stage& stage, const Needs& needs) {
  stage.chains.push_back({{},
                          needs.columns,
                          needs.granule,
                          needs.inputs,
                          nullptr,
                          needs.together,
                          needs.scratch_floats});
  return static_cast<int>(stage.chains.size()) - 1;
}

// Merges the chains into the first of them; the emptied ones stay, so chain numbers stay valid.
int StagePlanner::join(Stage& stage, const std::vector<int>& chains, const Needs& needs) {
  Chain& into = stage.chains[chains[0]];
  for (size_t i = 1; i < chains.size(); ++i) {
    Chain& from = stage.chains[chains[i]];
    for (const Step& step : from.steps) {
      into.steps.push_back(step);
      if (plan_.values[step.out].stage >= 0) plan_.values[step.out].chain = chains[0];
    }
    into.granule = std::lcm(into.granule, from.granule);
    into.inputs += from.inputs;
    if (from.attention) into.attention = from.attention;
    from = {};
  }
  into.granule = std::lcm(into.granule, needs.granule);
  into.inputs += needs.inputs;
  return chains[0];
}

}  // namespace fewbit
