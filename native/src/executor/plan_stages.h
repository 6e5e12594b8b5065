// Puts steps into stages: what runs side by side, and which steps share a unit of work.
#pragma once

#include <vector>

#include "executor/plan.h"

namespace fewbit {

// How a step may be cut.
struct Needs {
  int64_t columns = 0;
  int64_t granule = 1;  // columns that one unit must have together
  int64_t inputs = 0;   // of a linear layer
  bool together = false;
  size_t scratch_floats = 0;
};

// The half of planning that does not know what a step computes.
class StagePlanner {
 protected:
  StagePlanner(const Program& program, int64_t chunk_rows);

  int new_value(Form form, int64_t width);
  // A buffer that an earlier op wrote; throws where none did.
  const Value& made(int value) const;
  // Throws where an op must not write the buffer, or not as many columns.
  void expect_unwritten(int out) const;
  void expect_width(int out, int64_t width) const;

  // Puts the step into the last stage where what it reads allows it: into the chain that makes its
  // inputs, or as a chain of its own beside the others; otherwise into a new stage.
  void append(const Step& step, const Needs& needs, Domain domain);

  const Program& program_;
  Plan plan_;

 private:
  bool made_in(int value, Domain domain, int stage) const;
  bool chains_to_join(const Step& step, const Needs& needs, Domain domain, int last,
                      std::vector<int>& chains) const;
  static int new_chain(Stage& stage, const Needs& needs);
  int join(Stage& stage, const std::vector<int>& chains, const Needs& needs);
};

}  // namespace fewbit
