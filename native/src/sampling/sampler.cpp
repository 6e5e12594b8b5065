#include "sampling/sampler.h"

namespace fewbit {

void TokenSampler::remember(int32_t token, bool generated) {
  if (rule.penalizes()) history[token] += generated ? 1 : 0;
}

double TokenSampler::uniform(int64_t position, Purpose purpose, int64_t start) const {
  const auto at = static_cast<uint64_t>(position);
  const auto block = static_cast<uint64_t>(start);
  const auto use = static_cast<uint64_t>(purpose);
  if (numbers) return numbers->at({at, use, block});
  return keyed_uniform(rule.seed, rule.sample, at, use, block);
}

void Remembered::add(int32_t token) {
  if (!sampler_->rule.penalizes()) return;
  added_.push_back({token, !sampler_->history.contains(token)});
  sampler_->remember(token, true);
}

void Remembered::keep(int64_t count) {
  while (static_cast<int64_t>(added_.size()) > count) {
    const Added last = added_.back();
    added_.pop_back();
    if (last.is_new)
      sampler_->history.erase(last.token);
    else
      --sampler_->history[last.token];
  }
}

}  // namespace fewbit
