#include "executor/plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "executor/plan_stages.h"
#include "linear/split.h"

namespace fewbit {

namespace {

// Turns ops into steps.
class Planner : private StagePlanner {
 public:
  Planner(const Program& program, int64_t chunk_rows) : StagePlanner(program, chunk_rows) {}

  Plan run() {
    for (const Op& op : program_.ops) std::visit([&](const auto& what) { add(op, what); }, op.what);
    check_logits();
    place_values(program_, plan_);
    return std::move(plan_);
  }

 private:
  void add(const Op& op, const GivenOp&) {
    expect_unwritten(op.out);
    Value& value = plan_.values[op.out];
    value.made = true;
    value.place = Place::kStep;
  }

  void add(const Op& op, const EmbedOp& embed) {
    const int64_t width = embed.weight->columns;
    if (embed.weight->rows < program_.vocabulary) {
      throw std::invalid_argument("the embedding has fewer rows than the vocabulary.");
    }
    expect_width(op.out, width);
    append({op.out, {}, {}, &embed}, {width, width}, Domain::kRows);
  }

  void add(const Op& op, const RopeTableOp& table) {
    const auto width = static_cast<int64_t>(2 * table.frequencies.size());
    expect_width(op.out, width);
    append({op.out, {}, {}, &table}, {width, width}, Domain::kRows);
  }

  void add(const Op& op, const RmsNormOp& norm) {
    const int64_t width = made(norm.x).width;
    expect_width(op.out, width);
    if (norm.width < 1 || width % norm.width ||
        static_cast<int64_t>(norm.weight.size()) != norm.width) {
      throw std::invalid_argument("a norm's width does not fit its buffer or its weight.");
    }
    append({op.out, {norm.x}, {}, &norm}, {width, norm.width}, made(norm.x).domain);
  }

  void add(const Op& op, const LinearOp& linear) {
    const PackedMatrix& weight = *linear.weight;
    if (made(linear.x).width != weight.columns) {
      throw std::invalid_argument("a linear layer's input width is not its weight's columns.");
    }
    expect_width(op.out, weight.rows);
    if (!linear.bias.empty() && static_cast<int64_t>(linear.bias.size()) != weight.rows) {
      throw std::invalid_argument("a bias's length is not its weight's rows.");
    }
    const float* bias = linear.bias.empty() ? nullptr : linear.bias.data();
    const Domain domain = made(linear.x).domain;
    const Needs needs{weight.rows, std::min<int64_t>(kTileRows, weight.rows), weight.columns};
    check_rounding(weight, linear.rounding);
    check_order(linear.order.get(), linear.rounding, weight.columns);
    if (linear.rounding == InputRounding::kNone) {
      append({op.out, {}, {linear.x}, FloatLinearStep{linear.x, &weight, bias}}, needs, domain);
      return;
    }
    const int activations =
        rounded(linear.x, {linear.rounding, linear.input_scale, linear.order.get()});
    if (linear.rounding == InputRounding::kSplit) {
      append({op.out, {}, {activations}, SplitLinearStep{activations, &weight, bias}}, needs,
             domain);
    } else if (linear.rounding == InputRounding::kBfloat16) {
      append({op.out, {}, {activations}, WeightOnlyLinearStep{activations, &weight, bias}}, needs,
             domain);
    } else {
      append({op.out, {}, {activations}, IntegerLinearStep{activations, &weight, bias}}, needs,
             domain);
    }
  }

  void add(const Op& op, const RopeOp& rope) {
    const int64_t width = made(rope.x).width;
    expect_width(op.out, width);
    if (rope.head_dim < 2 || rope.head_dim % 2 || width % rope.head_dim ||
        made(rope.table).width != rope.head_dim || made(rope.table).domain != made(rope.x).domain) {
      throw std::invalid_argument("a rotation's head size does not fit its buffer or its table.");
    }
    append({op.out, {rope.x}, {rope.table}, &rope}, {width, rope.head_dim}, made(rope.x).domain);
  }

  void add(const Op& op, const HadamardOp& hadamard) {
    const int64_t width = made(hadamard.x).width;
    const int64_t head = hadamard.head_dim;
    expect_width(op.out, width);
    if (head < 1 || (head & (head - 1)) || width % head) {
      throw std::invalid_argument(
          "a Hadamard transform's head size is no power of two, or does "
          "not divide its buffer.");
    }
    append({op.out, {hadamard.x}, {}, &hadamard}, {width, head}, made(hadamard.x).domain);
  }

  void add(const Op& op, const AttentionOp& attention) {
    check(attention);
    const int64_t head = attention.head_dim;
    const int64_t width = attention.heads * head;
    const int64_t key_width = attention.kv_heads * head;
    expect_width(op.out, width);
    const int keys = new_value(Form::kDependency, key_width);
    const int values = new_value(Form::kDependency, key_width);
    append({keys, {attention.k}, {}, StoreKeysStep{attention.k, &attention}}, {key_width, head},
           Domain::kRows);
    append({values, {attention.v}, {}, StoreValuesStep{attention.v, &attention}}, {key_width, head},
           Domain::kRows);
    append({op.out, {attention.q}, {keys, values}, AttendStep{&attention}},
           {width, width / attention.kv_heads}, Domain::kRows);
    const Value& out = plan_.values[op.out];
    plan_.body[out.stage].chains[out.chain].attention = &attention;
    const int merged = new_value(Form::kDependency, width);
    append({merged, {}, {op.out}, MergeStep{&attention, op.out}}, {width, head}, Domain::kRows);
    plan_.values[op.out].stage = plan_.values[merged].stage;
    plan_.values[op.out].chain = plan_.values[merged].chain;
  }

  void add(const Op& op, const GatedOp& gated) {
    elementwise({op.out, {gated.gate, gated.up}, {}, &gated});
  }

  void add(const Op& op, const MixtureOp& mixture) {
    check(op, mixture);
    const Domain domain = made(mixture.x).domain;
    const auto experts = static_cast<int64_t>(mixture.experts.size());
    const int routes = new_choices(Form::kRoutes, experts, mixture.used);
    append({routes, {}, {mixture.router}, RouteStep{&mixture}}, {experts, experts, 0, true},
           domain);
    ByRounding x, inner;
    x.fill(-1);
    inner.fill(-1);
    for (const Expert& expert : mixture.experts) {
      gather(mixture, routes, expert.gate_rounding, x);
      gather(mixture, routes, expert.up_rounding, x);
    }
    for (const Expert& expert : mixture.experts) {
      add_gates(mixture, routes, expert.down_rounding, x, inner);
    }
    add_downs(op, mixture, routes, inner);
  }

  void add(const Op& op, const AddOp& sum) { elementwise({op.out, {sum.x, sum.y}, {}, &sum}); }

  void add(const Op& op, const SoftcapOp& softcap) {
    elementwise({op.out, {softcap.x}, {}, &softcap});
  }

  void add(const Op& op, const SelectRowsOp& select) {
    if (made(select.x).domain != Domain::kRows) {
      throw std::invalid_argument("the program selects rows of rows that were selected.");
    }
    elementwise({op.out, {select.x}, {}, &select});
    Value& selected = plan_.values[op.out];
    selected.domain = Domain::kWanted;
    selected.place = Place::kStep;
    selected.first_stage = selected.stage = selected.chain = -1;
  }

  void elementwise(const Step& step) {
    const Value first = made(step.alongside[0]);
    expect_width(step.out, first.width);
    for (const int input : step.alongside) {
      if (made(input).width != first.width || made(input).domain != first.domain) {
        throw std::invalid_argument("an elementwise op's inputs differ in width or in rows.");
      }
    }
    append(step, {first.width}, first.domain);
  }

  void check(const AttentionOp& attention) {
    const int64_t head = attention.head_dim;
    const bool fits = attention.layer >= 0 && attention.layer < program_.layers && head > 0 &&
                      attention.kv_heads > 0 && attention.heads > 0 &&
                      attention.heads % attention.kv_heads == 0 &&
                      made(attention.q).width == attention.heads * head &&
                      made(attention.k).width == attention.kv_heads * head &&
                      made(attention.v).width == attention.kv_heads * head;
    if (!fits) throw std::invalid_argument("an attention op's heads do not fit its buffers.");
    if (is_integer(program_.cache) && head % kRun) {
      throw std::invalid_argument("heads of an integer store are not a multiple of 32 elements.");
    }
    for (const int input : {attention.q, attention.k, attention.v}) {
      if (made(input).domain != Domain::kRows) {
        throw std::invalid_argument("the program attends from selected rows.");
      }
    }
    if (std::find(layers_.begin(), layers_.end(), attention.layer) != layers_.end()) {
      throw std::invalid_argument("two attention ops share the key-value store of one layer.");
    }
    layers_.push_back(attention.layer);
  }

  void check(const Op& op, const MixtureOp& mixture) {
    const auto experts = static_cast<int64_t>(mixture.experts.size());
    if (mixture.used < 1 || mixture.used > experts || made(mixture.router).width != experts ||
        made(mixture.router).domain != made(mixture.x).domain) {
      throw std::invalid_argument("a mixture's router does not fit its experts.");
    }
    for (const Expert& expert : mixture.experts) {
      check_expert(*expert.gate, expert.gate_rounding, mixture.width(), made(mixture.x).width);
      check_expert(*expert.up, expert.up_rounding, mixture.width(), made(mixture.x).width);
      check_expert(*expert.down, expert.down_rounding, made(mixture.x).width, mixture.width());
      check_orders(expert, mixture.width(), made(mixture.x).width);
    }
    expect_width(op.out, made(mixture.x).width);
  }

  static void check_expert(const PackedMatrix& weight, InputRounding rounding, int64_t rows,
                           int64_t columns) {
    if (weight.rows != rows || weight.columns != columns) {
      throw std::invalid_argument("an expert's matrices do not fit each other.");
    }
    check_rounding(weight, rounding);
  }

  static void check_rounding(const PackedMatrix& weight, InputRounding rounding) {
    const bool split = rounding == InputRounding::kSplit;
    if (weight.is_float() != is_float(rounding) || (split && !fits_split(weight))) {
      throw std::invalid_argument("a matrix's input is not rounded as its weights need.");
    }
  }

  // What gate or up reads as floats is in no order.
  static void check_orders(const Expert& expert, int64_t inner, int64_t outer) {
    const bool floats = is_float(expert.gate_rounding);
    check_order(expert.input_order.get(), floats ? expert.up_rounding : expert.gate_rounding,
                outer);
    check_order(expert.inner_order.get(), expert.down_rounding, inner);
  }

  // An order decides where kernels read: every place of it must be a column.
  static void check_order(const std::vector<int32_t>* order, InputRounding rounding,
                          int64_t columns) {
    if (!order) return;
    const auto inside = [&](int32_t column) { return column >= 0 && column < columns; };
    if (is_float(rounding) || static_cast<int64_t>(order->size()) != columns ||
        !std::all_of(order->begin(), order->end(), inside)) {
      throw std::invalid_argument("the order of a matrix's inputs is not one of its columns.");
    }
  }

  // Rounds the inputs of experts once for all whose kernels take this rounding.
  void gather(const MixtureOp& mixture, int routes, InputRounding rounding, ByRounding& x) {
    int& value = x[static_cast<int>(rounding)];
    if (value >= 0) return;
    const int64_t width = made(mixture.x).width;
    value = new_choices(form_of(rounding), width, mixture.used);
    append({value, {}, {mixture.x, routes}, GatherStep{&mixture, routes, rounding}}, {width, width},
           made(mixture.x).domain);
  }

  void add_gates(const MixtureOp& mixture, int routes, InputRounding rounding, const ByRounding& x,
                 ByRounding& inner) {
    int& value = inner[static_cast<int>(rounding)];
    if (value >= 0) return;
    const int64_t width = mixture.width();
    const auto ordered = [&](const Expert& expert) {
      return expert.down_rounding == rounding && expert.inner_order;
    };
    const bool any = std::any_of(mixture.experts.begin(), mixture.experts.end(), ordered);
    const int64_t granule = any ? width : granule_of(rounding, width);
    value = new_choices(form_of(rounding), width, mixture.used);
    Step step{value, {}, {routes}, ExpertsGateStep{&mixture, routes, x, rounding}};
    for (const int input : x) {
      if (input >= 0) step.whole.push_back(input);
    }
    Needs needs{width, std::min(granule, width), 2 * mixture.used * made(mixture.x).width};
    needs.scratch_floats = 2 * std::max(kUnitElements, needs.granule);
    append(step, needs, made(mixture.x).domain);
  }

  void add_downs(const Op& op, const MixtureOp& mixture, int routes, const ByRounding& inner) {
    const int64_t width = made(mixture.x).width;
    const int products = new_choices(Form::kChoices, width, mixture.used);
    Step step{op.out, {}, {routes}, ExpertsDownStep{&mixture, routes, inner, products}};
    for (const int input : inner) {
      if (input >= 0) step.whole.push_back(input);
    }
    const Needs needs{width, std::min<int64_t>(kTileRows, width), mixture.used * mixture.width()};
    append(step, needs, made(mixture.x).domain);
    Value& value = plan_.values[products];
    value.made = true;
    value.domain = plan_.values[op.out].domain;
    value.first_stage = value.stage = value.last_stage = plan_.values[op.out].stage;
  }

  static Form form_of(InputRounding rounding) {
    if (rounding == InputRounding::kNone) return Form::kChoices;
    if (rounding == InputRounding::kSplit) return Form::kPieces;
    return is_int8(rounding) ? Form::kActivations : Form::kBfloats;
  }

  // Columns that a chain must have together to round what it makes: a scale of a row needs them
  // all.
  static int64_t granule_of(InputRounding rounding, int64_t width) {
    if (rounding == InputRounding::kInt8Row) return width;
    return rounding == InputRounding::kNone ? kTileRows : kGroup;
  }

  int new_choices(Form form, int64_t width, int64_t used) {
    const int value = new_value(form, width);
    plan_.values[value].per_row = used;
    return value;
  }

  // The value that holds a buffer rounded so, made once for all linear layers that read it. Values
  // are gathered where one unit has all columns.
  int rounded(int x, const Rounding& how) {
    for (const Rounded& known : rounded_) {
      if (known.x == x && same(known.how, how)) return known.value;
    }
    const int64_t width = width_in_runs(x);
    const int64_t granule = how.order ? width : granule_of(how.kind, width);
    const int value = new_value(form_of(how.kind), width);
    if (!is_int8(how.kind)) {
      append({value, {x}, {}, RoundStep{x, how}}, {width, granule}, made(x).domain);
    } else {
      append({value, {x}, {}, QuantizeStep{x, how}}, {width, granule}, made(x).domain);
    }
    rounded_.push_back({x, how, value});
    return value;
  }

  static bool same(const Rounding& one, const Rounding& other) {
    if (one.kind != other.kind || one.scale != other.scale) return false;
    if (!one.order || !other.order) return one.order == other.order;
    return *one.order == *other.order;
  }

  int64_t width_in_runs(int x) const {
    const int64_t width = made(x).width;
    if (width % kGroup) {
      throw std::invalid_argument("an integer weight's columns are not a multiple of 32.");
    }
    return width;
  }

  void check_logits() const {
    const int logits = program_.logits;
    if (logits < 0) return;
    if (made(logits).domain != Domain::kWanted || made(logits).width > program_.vocabulary) {
      throw std::invalid_argument(
          "the program's logits are wider than its vocabulary, or not one row a wanted row.");
    }
  }

  struct Rounded {
    int x;
    Rounding how;
    int value;
  };

  std::vector<Rounded> rounded_;  // buffers, and the values that hold them
  std::vector<int> layers_;       // that have an attention op
};

}  // namespace

Plan make_plan(const Program& program, int64_t chunk_rows) {
  return Planner(program, chunk_rows).run();
}

}  // namespace fewbit
