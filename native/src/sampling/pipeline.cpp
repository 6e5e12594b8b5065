#include "sampling/pipeline.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace fewbit {
namespace {

constexpr int64_t kBlock = kVocabularyBlock;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kBanned = -kInfinity;

// Bounds below which a token is passed over are loosened by this much, for the rounding of masses
// and of their sums (relative 2^-20 at most).
constexpr double kSlack = 0.99;

uint32_t order_key(float scaled) { return std::bit_cast<uint32_t>(scaled) & 0x7fffffffu; }

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

int64_t LogitsRow::column(int32_t id) const {
  if (ids.empty()) return id < count ? id : -1;
  const auto found = std::lower_bound(ids.begin(), ids.end(), id);
  const int64_t column = found - ids.begin();
  return found != ids.end() && *found == id && column < count ? column : -1;
}

SamplingFault Distribution::shape(const LogitsRow& row, const SamplingRule& rule,
                                  const TokenCounts& history) {
  vocabulary_ = row.count;
  blocks_ = (vocabulary_ + kBlock - 1) / kBlock;
  block_max_.resize(static_cast<size_t>(blocks_));
  if (!kernels_->scan(row.values, vocabulary_, block_max_.data())) {
    where_ = 0;
    while (std::isfinite(row.values[where_])) ++where_;
    return SamplingFault::kNotFinite;
  }
  const bool changes = !rule.bias.empty() || !history.empty() || row.allowed != nullptr;
  if (changes) {
    copy(row.values, 0);
    adjust(row, rule, history);
    kernels_->scan(values_.data(), vocabulary_, block_max_.data());
  }
  const SamplingFault fault = find_best(changes ? values_.data() : row.values);
  if (fault != SamplingFault::kNone) return fault;
  whole_ = !rule.greedy() && !rule.truncates();
  if (rule.greedy()) {
    candidates_.assign(1, {0, static_cast<int32_t>(best_), 1.0f});
    total_ = 1;
    return SamplingFault::kNone;
  }
  exponentiate(changes ? values_.data() : row.values, rule.temperature);
  if (!whole_) truncate(rule);
  return SamplingFault::kNone;
}

// Copies the logits from `begin` on, with banned ones after them up to a whole block.
void Distribution::copy(const float* logits, int64_t begin) {
  values_.resize(static_cast<size_t>(blocks_ * kBlock));
  std::copy(logits + begin, logits + vocabulary_, values_.begin() + begin);
  std::fill(values_.begin() + vocabulary_, values_.end(), kBanned);
}

void Distribution::adjust(const LogitsRow& row, const SamplingRule& rule,
                          const TokenCounts& history) {
  for (const auto& [id, bias] : rule.bias)
    if (const int64_t at = row.column(id); at >= 0) values_[static_cast<size_t>(at)] += bias;
  for (const auto& [id, count] : history) {
    const int64_t at = row.column(id);
    if (at < 0) continue;
    float& value = values_[static_cast<size_t>(at)];
    value = value > 0 ? value / rule.repetition : value * rule.repetition;
    if (count > 0) value -= rule.frequency * static_cast<float>(count) + rule.presence;
  }
  if (row.allowed != nullptr) forbid(row);
}

void Distribution::forbid(const LogitsRow& row) {
  if (!row.ids.empty()) {
    for (int64_t at = 0; at < vocabulary_; ++at) {
      const auto id = static_cast<uint32_t>(row.id(at));
      if ((row.allowed[id / 32] >> (id % 32) & 1) == 0) values_[static_cast<size_t>(at)] = kBanned;
    }
    return;
  }
  // Most words of a grammar's mask are all ones or all zeros. Values are padded to whole blocks.
  for (int64_t at = 0; at < vocabulary_; at += 32) {
    const uint32_t word = row.allowed[at / 32];
    float* values = values_.data() + at;
    if (word == 0xffffffffu) continue;
    for (int64_t i = 0; i < 32; ++i) values[i] = word >> i & 1 ? values[i] : kBanned;
  }
}

SamplingFault Distribution::find_best(const float* values) {
  int64_t block = 0;
  for (int64_t b = 1; b < blocks_; ++b)
    if (block_max_[static_cast<size_t>(block)] < block_max_[static_cast<size_t>(b)]) block = b;
  const float best = block_max_[static_cast<size_t>(block)];
  best_ = block * kBlock;
  while (values[best_] != best) ++best_;
  where_ = best_;
  if (best == kInfinity) return SamplingFault::kNotFinite;
  return best == kBanned ? SamplingFault::kAllMasked : SamplingFault::kNone;
}

void Distribution::exponentiate(const float* logits, float temperature) {
  const float best = logits[best_];
  const int64_t whole = logits == values_.data() ? blocks_ : vocabulary_ / kBlock;
  if (logits != values_.data()) copy(logits, whole * kBlock);
  mass_.resize(values_.size());
  block_mass_.resize(static_cast<size_t>(blocks_));
  kernels_->exponentiate(logits, values_.data(), whole, best, temperature, mass_.data(),
                         block_mass_.data());
  float* rest = values_.data() + whole * kBlock;
  kernels_->exponentiate(rest, rest, blocks_ - whole, best, temperature,
                         mass_.data() + whole * kBlock, block_mass_.data() + whole);
  for (float& maximum : block_max_) maximum = (maximum - best) / temperature;
  total_ = 0;
  for (const double mass : block_mass_) total_ += mass;
  untruncated_ = total_;
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

void Distribution::write(float* out) const {
  const double scale = 1 / total_;
  if (whole_) {
    for (int64_t i = 0; i < vocabulary_; ++i)
      out[i] = static_cast<float>(static_cast<double>(mass_[static_cast<size_t>(i)]) * scale);
    return;
  }
  std::fill(out, out + vocabulary_, 0.0f);
  for (const Candidate& c : candidates_)
    out[c.id] = static_cast<float>(static_cast<double>(c.mass) * scale);
}

double Distribution::probability(int64_t column) const {
  if (whole_) return static_cast<double>(mass_[static_cast<size_t>(column)]) / total_;
  const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), column,
                                      [](const Candidate& c, int64_t at) { return c.id < at; });
  if (found == candidates_.end() || found->id != column) return 0;
  return static_cast<double>(found->mass) / total_;
}

double Distribution::subtract(double weight, const float* drawn, double scale) {
  mass_scale_ = weight / total_;
  drawn_scale_ = scale;
  drawn_ = drawn;
  if (whole_) {
    remainders_.resize(static_cast<size_t>(blocks_));
    kernels_->remainder(mass_.data(), mass_scale_, drawn, scale, blocks_, remainders_.data());
  } else {
    remainders_.clear();
    for (const Candidate& c : candidates_)
      remainders_.push_back(std::max(
          static_cast<double>(c.mass) * mass_scale_ - static_cast<double>(drawn[c.id]) * scale,
          0.0));
  }
  remainder_ = 0;
  for (const double left : remainders_) remainder_ += left;
  return remainder_;
}

int32_t Distribution::pick_remainder(double uniform) const {
  if (!(remainder_ > 0)) return pick(uniform);
  double remaining = uniform * remainder_;
  size_t last = 0;
  for (size_t i = 0; i < remainders_.size(); ++i) {
    if (remainders_[i] > 0) last = i;
    if (remaining < remainders_[i]) break;
    remaining -= remainders_[i];
  }
  if (!whole_) return candidates_[last].id;
  auto found = static_cast<int64_t>(last) * kBlock;
  for (int64_t i = found; i < static_cast<int64_t>(last + 1) * kBlock; ++i) {
    const double left = static_cast<double>(mass_[static_cast<size_t>(i)]) * mass_scale_ -
                        static_cast<double>(drawn_[i]) * drawn_scale_;
    if (left <= 0) continue;
    found = i;
    remaining -= left;
    if (remaining < 0) break;
  }
  return static_cast<int32_t>(found);
}

RowLogprobs row_logprobs(const float* logits, int64_t vocabulary, int32_t token, int64_t top,
                         Distribution& scratch) {
  SamplingRule rule{1, std::min(top, vocabulary), 1, 0, 1, 0, 0, {}, 0, 0};
  scratch.shape({logits, vocabulary}, rule, {});
  const auto best = static_cast<double>(logits[scratch.best()]);
  RowLogprobs found{scratch.untruncated(), static_cast<double>(logits[token]) - best, {}, {}};
  if (top <= 0) return found;
  std::vector<Candidate> likeliest = scratch.candidates();
  std::sort(likeliest.begin(), likeliest.end(), [](const Candidate& a, const Candidate& b) {
    return a.key != b.key ? a.key < b.key : a.id < b.id;
  });
  for (const Candidate& c : likeliest) {
    found.ids.push_back(c.id);
    found.others.push_back(static_cast<double>(logits[c.id]) - best);
  }
  return found;
}

}  // namespace fewbit
