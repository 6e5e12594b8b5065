// Where every value of a plan lies.
#include <algorithm>

#include "executor/mixture.h"
#include "executor/plan.h"
#include "linear/split.h"

namespace fewbit {

namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Placement {
 public:
  Placement(const Program& program, Plan& plan)
      : program_(program), plan_(plan), escapes_(plan.values.size(), false) {}

  void run() {
    note_uses(plan_.body);
    note_uses(plan_.tail);
    choose_places();
    place_in_units(plan_.body);
    place_in_units(plan_.tail);
    place_in_workspace(Domain::kRows);
    place_in_workspace(Domain::kWanted);
  }

 private:
  void note_uses(const std::vector<Stage>& stages) {
    for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage) {
      const std::vector<Chain>& chains = stages[stage].chains;
      for (int chain = 0; chain < static_cast<int>(chains.size()); ++chain) {
        for (const Step& step : chains[chain].steps) {
          for (const int input : step.alongside) note(input, stage, chain, false);
          for (const int input : step.whole) note(input, stage, chain, true);
        }
      }
    }
  }

  // `whole`: read beyond the rectangle that the reading unit owns.
  void note(int input, int stage, int chain, bool whole) {
    Value& value = plan_.values[input];
    value.last_stage = std::max(value.last_stage, stage);
    if (whole || stage != value.stage || chain != value.chain) escapes_[input] = true;
  }

  void choose_places() {
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      Value& value = plan_.values[i];
      value.last_stage = std::max(value.last_stage, value.stage);
      if (value.form != Form::kFloats || value.place == Place::kStep) continue;
      if (program_.buffers[i].tapped || static_cast<int>(i) == program_.logits) {
        value.place = Place::kStep;
      } else if (!escapes_[i] && value.first_stage == value.stage) {
        value.place = Place::kUnit;
      }
    }
  }

  void place_in_units(const std::vector<Stage>& stages) {
    for (const Stage& stage : stages) {
      for (const Chain& chain : stage.chains) place_in_unit(chain);
    }
  }

  void place_in_unit(const Chain& chain) {
    // Without linear layers columns stay whole: a unit of one row may be wider than any granule.
    const bool whole = chain.inputs == 0 && !chain.attention;
    const size_t floats = std::max(kUnitElements, whole ? chain.columns : chain.granule);
    size_t used = chain.scratch_floats;  // its steps' own comes first
    for (const Step& step : chain.steps) {
      Value& value = plan_.values[step.out];
      if (value.place != Place::kUnit) continue;
      value.offset = used;
      used += floats;
    }
    plan_.scratch_floats = std::max(plan_.scratch_floats, used);
  }

  size_t chunk_bytes(const Value& value) const {
    if (value.form == Form::kDependency || !value.made) return 0;
    const int64_t rows = plan_.chunk_rows * value.per_row;
    if (value.form == Form::kActivations) return aligned(activation_bytes(rows, value.width));
    if (value.form == Form::kBfloats) return aligned(bfloat_bytes(rows, value.width));
    if (value.form == Form::kPieces) return aligned(split_bytes(rows, value.width));
    if (value.form == Form::kRoutes) return aligned(route_bytes(rows, value.width));
    return aligned(sizeof(float) * rows * value.width);
  }

  // First fit, in the order in which the values are made: a value takes the lowest bytes that no
  // value of an overlapping lifetime holds.
  void place_in_workspace(Domain domain) {
    std::vector<int> order;
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      const Value& value = plan_.values[i];
      if (value.place == Place::kChunk && value.domain == domain && chunk_bytes(value) > 0) {
        order.push_back(static_cast<int>(i));
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return plan_.values[a].first_stage < plan_.values[b].first_stage;
    });
    const auto lower = [&](int a, int b) {
      return plan_.values[a].offset < plan_.values[b].offset;
    };
    std::vector<int> placed;  // by offset
    for (const int i : order) {
      Value& value = plan_.values[i];
      const size_t bytes = chunk_bytes(value);
      value.offset = first_fit(value, bytes, placed);
      placed.insert(std::upper_bound(placed.begin(), placed.end(), i, lower), i);
      plan_.workspace_bytes = std::max(plan_.workspace_bytes, value.offset + bytes);
    }
  }

  size_t first_fit(const Value& value, size_t bytes, const std::vector<int>& placed) const {
    size_t offset = 0;
    for (const int other : placed) {
      const Value& taken = plan_.values[other];
      if (taken.last_stage < value.first_stage || value.last_stage < taken.first_stage) continue;
      if (offset + bytes <= taken.offset) break;
      offset = std::max(offset, taken.offset + chunk_bytes(taken));
    }
    return offset;
  }

  const Program& program_;
  Plan& plan_;
  std::vector<bool> escapes_;  // by value: read outside the unit that makes it
};

}  // namespace

void place_values(const Program& program, Plan& plan) { Placement(program, plan).run(); }

}  // namespace fewbit
