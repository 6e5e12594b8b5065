#include "sampling/pipeline.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#include "sampling/exp.h"

namespace fewbit {
namespace {

constexpr int64_t kBlock = 128;
constexpr int64_t kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kBanned = -kInfinity;

// Bounds below which a token is passed over are loosened by this much, for the rounding of masses
// and of their sums (relative 2^-20 at most).
constexpr double kSlack = 0.99;

uint32_t order_key(float scaled) { return std::bit_cast<uint32_t>(scaled) & 0x7fffffffu; }

// Folds a block of 128 into 16 lanes in ascending order, then the lanes by one tree.
template <class Fold>
float fold_block(const float* x, Fold fold) {
  float lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lanes[l] = x[l];
  for (int64_t i = kLanes; i < kBlock; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = fold(lanes[l], x[i + l]);
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t l = 0; l < width; ++l) lanes[l] = fold(lanes[l], lanes[l + width]);
  return lanes[0];
}

float block_maximum(const float* x) {
  return fold_block(x, [](float a, float b) { return a < b ? b : a; });
}

float block_sum(const float* x) {
  return fold_block(x, [](float a, float b) { return a + b; });
}

bool all_finite(const float* x, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t exponent = std::bit_cast<uint32_t>(x[i]) & 0x7f800000u;
    found |= exponent == 0x7f800000u ? 1u : 0u;
  }
  return found == 0;
}

// Keeps the shortest prefix, in the order (key, id) ascending, whose weights reach `target`: a
// radix search for the key at which they do, then that key's tokens in ascending id order.
template <class Weight>
void keep_prefix(std::vector<Candidate>& candidates, double target, Weight weight) {
  struct Digit {
    uint32_t shift;
    uint32_t bits;
  };
  uint32_t found = 0;
  uint32_t known = 0;
  double reached = 0;
  std::vector<double> bins;
  for (const Digit digit : {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}}) {
    bins.assign(size_t{1} << digit.bits, 0.0);
    const uint32_t mask = (1u << digit.bits) - 1;
    for (const Candidate& c : candidates)
      if ((c.key & known) == found) bins[(c.key >> digit.shift) & mask] += weight(c);
    uint32_t bin = 0;
    while (bin <= mask && reached + bins[bin] < target) reached += bins[bin++];
    if (bin > mask) return;  // rounding kept the sum under the target: everything is kept
    found |= bin << digit.shift;
    known |= mask << digit.shift;
  }
  size_t kept = 0;
  for (const Candidate& c : candidates) {
    if (c.key > found || (c.key == found && reached >= target)) continue;
    if (c.key == found) reached += weight(c);
    candidates[kept++] = c;
  }
  candidates.resize(kept);
}

}  // namespace

SamplingFault Distribution::shape(const float* logits, int64_t vocabulary, const SamplingRule& rule,
                                  const TokenCounts& history) {
  if (!load(logits, vocabulary)) return SamplingFault::kNotFinite;
  adjust(rule, history);
  if (const SamplingFault fault = find_best(); fault != SamplingFault::kNone) return fault;
  whole_ = !rule.greedy() && !rule.truncates();
  if (rule.greedy()) {
    candidates_.assign(1, {0, static_cast<int32_t>(best_), 1.0f});
    total_ = 1;
    return SamplingFault::kNone;
  }
  exponentiate(rule.temperature);
  if (!whole_) truncate(rule);
  return SamplingFault::kNone;
}

bool Distribution::load(const float* logits, int64_t vocabulary) {
  vocabulary_ = vocabulary;
  blocks_ = (vocabulary + kBlock - 1) / kBlock;
  where_ = 0;
  values_.resize(static_cast<size_t>(blocks_ * kBlock));
  mass_.resize(values_.size());
  block_max_.resize(static_cast<size_t>(blocks_));
  block_mass_.resize(static_cast<size_t>(blocks_));
  if (!all_finite(logits, vocabulary)) {
    while (all_finite(logits + where_, 1)) ++where_;
    return false;
  }
  std::memcpy(values_.data(), logits, static_cast<size_t>(vocabulary) * sizeof(float));
  std::fill(values_.begin() + vocabulary, values_.end(), kBanned);
  return true;
}

void Distribution::adjust(const SamplingRule& rule, const TokenCounts& history) {
  for (const auto& [id, bias] : rule.bias)
    if (id < vocabulary_) values_[static_cast<size_t>(id)] += bias;
  if (!rule.penalizes()) return;
  for (const auto& [id, count] : history) {
    if (id >= vocabulary_) continue;
    float& value = values_[static_cast<size_t>(id)];
    value = value > 0 ? value / rule.repetition : value * rule.repetition;
    if (count > 0) value -= rule.frequency * static_cast<float>(count) + rule.presence;
  }
}

SamplingFault Distribution::find_best() {
  float best = kBanned;
  int64_t best_block = 0;
  for (int64_t b = 0; b < blocks_; ++b) {
    const float found = block_maximum(values_.data() + b * kBlock);
    block_max_[static_cast<size_t>(b)] = found;
    if (best < found) best = found, best_block = b;
  }
  best_ = best_block * kBlock;
  while (values_[static_cast<size_t>(best_)] != best) ++best_;
  if (best == kInfinity) {
    where_ = best_;
    return SamplingFault::kNotFinite;
  }
  return best == kBanned ? SamplingFault::kAllMasked : SamplingFault::kNone;
}

void Distribution::exponentiate(float temperature) {
  const float best = values_[static_cast<size_t>(best_)];
  total_ = 0;
  for (int64_t b = 0; b < blocks_; ++b) {
    float* value = values_.data() + b * kBlock;
    float* mass = mass_.data() + b * kBlock;
    for (int64_t i = 0; i < kBlock; ++i) value[i] = (value[i] - best) / temperature;
    for (int64_t i = 0; i < kBlock; ++i) mass[i] = exp_nonpositive(value[i]);
    float& maximum = block_max_[static_cast<size_t>(b)];
    maximum = (maximum - best) / temperature;
    block_mass_[static_cast<size_t>(b)] = static_cast<double>(block_sum(mass));
    total_ += block_mass_[static_cast<size_t>(b)];
  }
}

void Distribution::truncate(const SamplingRule& rule) {
  const auto mass = [](const Candidate& c) { return static_cast<double>(c.mass); };
  const auto sum = [&] {
    double found = 0;
    for (const Candidate& c : candidates_) found += mass(c);
    return found;
  };
  if (rule.top_k > 0 && rule.top_k < vocabulary_) {
    collect_top_k(rule.top_k);
    keep_prefix(candidates_, static_cast<double>(rule.top_k), [](const Candidate&) { return 1.0; });
    total_ = sum();
  } else {
    // Tokens lighter than an equal share of the mass beyond top-p are never needed to reach it.
    const double share = (1 - rule.top_p) * total_ / static_cast<double>(vocabulary_);
    collect_mass(rule.top_p < 1 ? share * kSlack : rule.min_p);
  }
  if (rule.top_p < 1) keep_prefix(candidates_, rule.top_p * total_, mass);
  std::erase_if(candidates_,
                [&](const Candidate& c) { return !(c.mass > 0) || mass(c) < rule.min_p; });
  total_ = sum();
}

// The k-th largest block maximum is not above the k-th largest logit, so everything below it is
// passed over.
void Distribution::collect_top_k(int64_t k) {
  float smallest = kBanned;
  if (k <= blocks_) {
    std::vector<float> order = block_max_;
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
    smallest = order[static_cast<size_t>(k - 1)];
  }
  candidates_.clear();
  for (int64_t b = 0; b < blocks_; ++b) {
    if (block_max_[static_cast<size_t>(b)] < smallest) continue;
    for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i) {
      const float value = values_[static_cast<size_t>(i)];
      if (value >= smallest && value != kBanned)
        candidates_.push_back(
            {order_key(value), static_cast<int32_t>(i), mass_[static_cast<size_t>(i)]});
    }
  }
}

void Distribution::collect_mass(double smallest) {
  candidates_.clear();
  for (int64_t b = 0; b < blocks_; ++b) {
    if (block_mass_[static_cast<size_t>(b)] < smallest * kSlack) continue;
    for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i) {
      const float mass = mass_[static_cast<size_t>(i)];
      if (static_cast<double>(mass) >= smallest && mass > 0)
        candidates_.push_back(
            {order_key(values_[static_cast<size_t>(i)]), static_cast<int32_t>(i), mass});
    }
  }
}

int32_t Distribution::pick(double uniform) const {
  double remaining = uniform * total_;
  if (whole_) {
    int64_t last = 0;
    for (int64_t b = 0; b < blocks_; ++b) {
      const double mass = block_mass_[static_cast<size_t>(b)];
      if (remaining < mass) return pick_in_block(b, remaining);
      if (mass > 0) last = b;
      remaining -= mass;
    }
    return pick_in_block(last, remaining);
  }
  for (const Candidate& c : candidates_) {
    remaining -= static_cast<double>(c.mass);
    if (remaining < 0) return c.id;
  }
  return candidates_.back().id;
}

int32_t Distribution::pick_in_block(int64_t block, double remaining) const {
  int64_t last = block * kBlock;
  for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
    const float mass = mass_[static_cast<size_t>(i)];
    remaining -= static_cast<double>(mass);
    if (remaining < 0) return static_cast<int32_t>(i);
    if (mass > 0) last = i;
  }
  return static_cast<int32_t>(last);
}

void Distribution::probabilities(double* out) const {
  if (whole_) {
    for (int64_t i = 0; i < vocabulary_; ++i)
      out[i] = static_cast<double>(mass_[static_cast<size_t>(i)]) / total_;
    return;
  }
  std::fill(out, out + vocabulary_, 0.0);
  for (const Candidate& c : candidates_) out[c.id] = static_cast<double>(c.mass) / total_;
}

RowLogprobs row_logprobs(const float* logits, int64_t vocabulary, int32_t token, int64_t top) {
  float best = logits[0];
  for (int64_t i = 1; i < vocabulary; ++i) best = best < logits[i] ? logits[i] : best;
  RowLogprobs found{0, static_cast<double>(logits[token]) - static_cast<double>(best), {}, {}};
  for (int64_t begin = 0; begin < vocabulary; begin += kBlock) {
    float mass[kBlock] = {};
    const int64_t count = std::min(kBlock, vocabulary - begin);
    for (int64_t i = 0; i < count; ++i) mass[i] = exp_nonpositive(logits[begin + i] - best);
    found.total += static_cast<double>(block_sum(mass));
  }
  std::vector<int32_t> order(static_cast<size_t>(top > 0 ? vocabulary : 0));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto count = std::min<int64_t>(top, static_cast<int64_t>(order.size()));
  std::partial_sort(
      order.begin(), order.begin() + std::max<int64_t>(count, 0), order.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = order[static_cast<size_t>(i)];
    found.ids.push_back(id);
    found.others.push_back(static_cast<double>(logits[id]) - static_cast<double>(best));
  }
  return found;
}

}  // namespace fewbit
