// From a Program to stages: what runs side by side, how it is cut, and where every value lies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "executor/program.h"

namespace fewbit {

// Rounds a buffer to int8, once for all linear layers that read it so.
struct QuantizeStep {
  int x;
  Rounding how;
};
// Rounds a buffer to bf16, or cuts it into bf16 pieces, once for all linear layers that read it so.
struct RoundStep {
  int x;
  Rounding how;
};
struct IntegerLinearStep {
  int activations;
  const PackedMatrix* weight;
  const float* bias;
};
struct WeightOnlyLinearStep {
  int activations;
  const PackedMatrix* weight;
  const float* bias;
};
struct SplitLinearStep {
  int activations;
  const PackedMatrix* weight;
  const float* bias;
};
struct FloatLinearStep {
  int x;
  const PackedMatrix* weight;
  const float* bias;
};
// An attention op in four: keys and values are written before any is read; where one row's blocks
// were dealt to several units, they are merged in their order.
struct StoreKeysStep {
  int x;
  const AttentionOp* attention;
};
struct StoreValuesStep {
  int x;
  const AttentionOp* attention;
};
struct AttendStep {
  const AttentionOp* attention;
};
struct MergeStep {
  const AttentionOp* attention;
  int mixed;  // the buffer that AttendStep writes where nothing is to be merged
};

// By rounding: the value that holds rows so rounded, one for each choice of an expert by a row;
// -1 where no expert's kernels want that.
using ByRounding = std::array<int, kInputRoundings>;

// A mixture op in four: rows choose experts, their inputs are rounded to where each expert's rows
// lie together, gate and up make the inputs of down, and what down gives is summed for each row.
struct RouteStep {
  const MixtureOp* mixture;
};
struct GatherStep {
  const MixtureOp* mixture;
  int routes;
  InputRounding rounding;
};
struct ExpertsGateStep {  // of the experts whose down takes this rounding
  const MixtureOp* mixture;
  int routes;
  ByRounding x;
  InputRounding rounding;
};
struct ExpertsDownStep {
  const MixtureOp* mixture;
  int routes;
  ByRounding x;
  int products;  // what down gives, one row for each choice
};

struct Step {
  int out;                     // a value
  std::vector<int> alongside;  // values read at the columns that are written
  std::vector<int> whole;      // values read across columns, or across rows
  std::variant<const EmbedOp*, const RopeTableOp*, const RmsNormOp*, const RopeOp*,
               const HadamardOp*, const GatedOp*, const AddOp*, const SelectRowsOp*,
               const SoftcapOp*, QuantizeStep, RoundStep, IntegerLinearStep, WeightOnlyLinearStep,
               SplitLinearStep, FloatLinearStep, StoreKeysStep, StoreValuesStep, AttendStep,
               MergeStep, RouteStep, GatherStep, ExpertsGateStep, ExpertsDownStep>
      what;
};

// Whether a value has a row for every row of the step, or for every wanted row.
enum class Domain : uint8_t { kRows, kWanted };

enum class Form : uint8_t {
  kFloats,       // a buffer of the Program
  kActivations,  // int8 codes, scales and sums of a buffer
  kBfloats,      // values of a buffer rounded to bf16, and their sums
  kPieces,       // values of a buffer as sums of bf16 numbers
  kRoutes,       // a mixture's choices (mixture.h); `width` experts, `per_row` of a row
  kChoices,      // floats, one row for each choice
  kDependency,   // no bytes of the plan's: keys or values in the store, a merge that is done
};

enum class Place : uint8_t {
  kUnit,   // inside one unit of work: the thread's scratch
  kChunk,  // inside one chunk of rows: the workspace, shared by values that do not live together
  kStep,   // all rows of the step: logits, tapped buffers, and what the second domain reads
};

struct Value {
  Form form;
  int64_t width;
  int64_t per_row = 1;  // rows of the value for each of the chunk: the experts that one chooses
  Domain domain = Domain::kRows;
  Place place = Place::kChunk;
  size_t offset = 0;  // kUnit: floats into the scratch; kChunk: bytes into the workspace
  bool made = false;
  int first_stage = -1;  // where it starts to be written
  int stage = -1;        // where it is complete; -1 where the other domain makes it
  int chain = -1;
  int last_stage = -1;
};

// Steps that run one after another on a region of rows and columns; regions of one chain do not
// depend on each other. Columns are cut at multiples of `granule`.
struct Chain {
  std::vector<Step> steps;
  int64_t columns = 0;
  int64_t granule = 1;
  int64_t inputs = 0;  // of its linear layers: multiply-adds for one column of one row
  const AttentionOp* attention = nullptr;
  bool together = false;      // one unit of all rows
  size_t scratch_floats = 0;  // that its steps take of the thread's, beside its values
};

struct Stage {
  Domain domain = Domain::kRows;
  std::vector<Chain> chains;
};

struct Plan {
  std::vector<Stage> body;  // run for every chunk of the step's rows
  std::vector<Stage> tail;  // then run for every chunk of the wanted rows
  std::vector<Value> values;
  int64_t chunk_rows = 0;
  size_t workspace_bytes = 0;
  size_t scratch_floats = 0;  // a thread's, for the values of a unit
};

// Most elements of one value inside a unit, unless a single granule or row is more.
inline constexpr int64_t kUnitElements = 1 << 15;

// Decides place and offset of every value, and how much memory they take together.
void place_values(const Program& program, Plan& plan);

// Plans a program for chunks of at most `chunk_rows` rows. The program must outlive the plan.
// Throws std::invalid_argument with a sentence where the program is not one that can run.
Plan make_plan(const Program& program, int64_t chunk_rows);

}  // namespace fewbit
