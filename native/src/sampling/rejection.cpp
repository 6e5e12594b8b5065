#include "sampling/rejection.h"

#include <algorithm>
#include <stdexcept>

namespace fewbit {
namespace {

// One row of what was drafted from, laid out over the target's columns.
class LaidOut {
 public:
  LaidOut(const DrawnFrom& from, int64_t j, int64_t vocabulary, DrawBuffers& buffers);
  ~LaidOut();
  LaidOut(const LaidOut&) = delete;
  LaidOut& operator=(const LaidOut&) = delete;

  const float* weights() const { return weights_; }
  // What a weight is multiplied by to be a probability.
  double scale() const { return scale_; }
  double probability(int32_t token) const { return static_cast<double>(weights_[token]) * scale_; }

 private:
  const DrawnFrom& from_;
  std::vector<float>& laid_;
  const float* weights_;
  double scale_;
};

LaidOut::LaidOut(const DrawnFrom& from, int64_t j, int64_t vocabulary, DrawBuffers& buffers)
    : from_(from), laid_(buffers.drafted), weights_(from.rows + j * from.columns) {
  buffers.weights.load(weights_, from.columns);
  scale_ = 1 / buffers.weights.total();
  const int64_t blocks = (vocabulary + kVocabularyBlock - 1) / kVocabularyBlock;
  const int64_t size = blocks * kVocabularyBlock;
  if (from.support.empty() && from.columns >= size) return;  // it is laid out already
  laid_.resize(static_cast<size_t>(size));
  if (from.support.empty()) {
    std::copy_n(weights_, std::min(from.columns, vocabulary), laid_.begin());
  } else {
    for (int64_t c = 0; c < from.columns; ++c)
      if (const int32_t id = from.support[static_cast<size_t>(c)]; id < vocabulary)
        laid_[static_cast<size_t>(id)] = weights_[c];
  }
  weights_ = laid_.data();
}

LaidOut::~LaidOut() {
  if (weights_ != laid_.data()) return;
  if (from_.support.empty()) {
    std::fill(laid_.begin(), laid_.end(), 0.0f);
    return;
  }
  for (const int32_t id : from_.support)
    if (static_cast<size_t>(id) < laid_.size()) laid_[static_cast<size_t>(id)] = 0;
}

// A block while it is judged, row by row.
class Judged {
 public:
  Judged(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers)
      : logits_(logits),
        request_(request),
        buffers_(buffers),
        p_(buffers.distribution),
        remembered_(*request.sampler),
        length_(static_cast<int64_t>(request.draft.size())) {}

  BlockDraws by_token();
  BlockDraws by_block();

 private:
  double uniform(int64_t j, Purpose purpose) const {
    return request_.sampler->uniform(request_.position + j, purpose, request_.position);
  }
  // Whether row j has a distribution, given the drafted tokens before it; otherwise the fault of
  // the draws is set.
  bool shape(int64_t j);
  LaidOut lay_out(int64_t j) {
    return LaidOut(request_.drawn_from, j, logits_.vocabulary, buffers_);
  }
  int32_t drafted(int64_t j) const { return request_.draft[static_cast<size_t>(j)]; }
  bool branches_at(int64_t j) const {
    return std::any_of(request_.branches.begin(), request_.branches.end(),
                       [&](const Branch& branch) { return branch.depth == j; });
  }
  // Judges the branches at depth j, whose first token was rejected: the draws that one of them or
  // the correction ends.
  BlockDraws by_siblings(int64_t j, const LaidOut& q);
  BlockDraws finish_on_branch(int64_t branch);
  // The draws that keep `kept` drafted tokens, and then end with `token`, with a draw from the
  // next row, or with the fault.
  BlockDraws finish(int64_t kept, int32_t token);
  BlockDraws finish_with_next(int64_t kept);
  BlockDraws finish_with_fault(int64_t kept);

  const Logits& logits_;
  const BlockRequest& request_;
  DrawBuffers& buffers_;
  Distribution& p_;
  Remembered remembered_;
  int64_t length_;
  BlockDraws draws_;
};

bool Judged::shape(int64_t j) {
  const TokenSampler& sampler = *request_.sampler;
  draws_.fault = p_.shape(logits_.row(request_, j), sampler.rule, sampler.history);
  if (draws_.fault == SamplingFault::kNone) return true;
  draws_.row = request_.row + j;
  draws_.where = p_.where();
  return false;
}

double ratio(double target, double drafted) {
  if (!(drafted > 0))
    throw std::invalid_argument("a drafted token has no probability in what it was drawn from");
  return target / drafted;
}

BlockDraws Judged::by_token() {
  for (int64_t j = 0; j < length_; ++j) {
    if (!shape(j)) return finish_with_fault(j);
    const LaidOut q = lay_out(j);
    if (uniform(j, Purpose::kAccept) >=
        ratio(p_.probability(drafted(j)), q.probability(drafted(j)))) {
      if (branches_at(j)) return by_siblings(j, q);
      p_.subtract(1, q.weights(), q.scale());
      return finish(j, p_.pick_remainder(uniform(j, Purpose::kCorrect)));
    }
    remembered_.add(drafted(j));
  }
  return finish_with_next(length_);
}

// weights / their sum; false where that is 0.
bool normalize(std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!(sum > 0)) return false;
  for (double& weight : weights) weight /= sum;
  return true;
}

// max(p - q, 0) / its sum, or p where nothing is left; and q without a token.
bool take_away(std::vector<double>& p, std::vector<double>& q, int32_t token) {
  std::vector<double> left(p.size());
  for (size_t i = 0; i < p.size(); ++i) left[i] = std::max(p[i] - q[i], 0.0);
  if (normalize(left)) p.swap(left);
  q[static_cast<size_t>(token)] = 0;
  return normalize(q);
}

int32_t pick_from(const std::vector<double>& p, double uniform) {
  double remaining = uniform;
  size_t last = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (!(p[i] > 0)) continue;
    last = i;
    remaining -= p[i];
    if (remaining < 0) break;
  }
  return static_cast<int32_t>(last);
}

BlockDraws Judged::by_siblings(int64_t j, const LaidOut& q) {
  std::vector<double>& p_left = buffers_.target_left;
  std::vector<double>& q_left = buffers_.draft_left;
  p_left.resize(static_cast<size_t>(logits_.vocabulary));
  p_.probabilities(p_left.data());
  q_left.resize(p_left.size());
  for (size_t i = 0; i < q_left.size(); ++i) q_left[i] = q.probability(static_cast<int32_t>(i));
  bool more = take_away(p_left, q_left, drafted(j));
  int64_t rank = 0;
  for (size_t i = 0; i < request_.branches.size() && more; ++i) {
    const Branch& branch = request_.branches[i];
    if (branch.depth != j) continue;
    const int32_t token = branch.tokens.front();
    const auto at = static_cast<size_t>(token);
    const double accept = ratio(p_left[at], q_left[at]);
    if (request_.sampler->uniform(request_.position + j, Purpose::kAccept,
                                  block_key(request_.position, ++rank)) < accept) {
      return finish_on_branch(static_cast<int64_t>(i));
    }
    more = take_away(p_left, q_left, token);
  }
  return finish(j, pick_from(p_left, uniform(j, Purpose::kCorrect)));
}

BlockDraws Judged::finish_on_branch(int64_t index) {
  const Branch& branch = request_.branches[static_cast<size_t>(index)];
  const int64_t kept = branch.depth;
  draws_.tokens.assign(request_.draft.begin(), request_.draft.begin() + kept);
  draws_.tokens.push_back(branch.tokens.front());
  draws_.branch = index;
  remembered_.keep(kept);
  request_.sampler->remember(branch.tokens.front(), true);
  Walk walk(request_);
  for (const int32_t token : draws_.tokens) walk.follow(token);
  if (!shape(walk.row())) return std::move(draws_);
  const int32_t token = p_.pick(uniform(kept + 1, Purpose::kCorrect));
  draws_.tokens.push_back(token);
  request_.sampler->remember(token, true);
  return std::move(draws_);
}

// The chance to keep what precedes a row: s / (s + 1 - w), 1 where both are 0.
double chance(double left, double weight) {
  const double whole = left + 1 - weight;
  return whole > 0 ? left / whole : 1;
}

BlockDraws Judged::by_block() {
  double weight = 1;
  int64_t kept = 0;
  int32_t correction = 0;
  int64_t reached = 0;
  for (; reached < length_ && weight > 0 && shape(reached); ++reached) {
    const int64_t j = reached;
    const LaidOut q = lay_out(j);
    const double left = p_.subtract(weight, q.weights(), q.scale());
    if (j == 0 || uniform(j - 1, Purpose::kAccept) < chance(left, weight)) {
      kept = j;
      correction = p_.pick_remainder(uniform(j, Purpose::kCorrect));
    }
    weight = std::min(weight * ratio(p_.probability(drafted(j)), q.probability(drafted(j))), 1.0);
    remembered_.add(drafted(j));
  }
  // A block that a fault cuts short is judged as the shorter block: where it ends was known before
  // anything beyond was drawn.
  if (reached == 0 || uniform(reached - 1, Purpose::kAccept) < weight)
    return reached == length_ ? finish_with_next(length_) : finish_with_fault(reached);
  return finish(kept, correction);
}

BlockDraws Judged::finish(int64_t kept, int32_t token) {
  remembered_.keep(kept);
  draws_.fault = SamplingFault::kNone;
  draws_.tokens.assign(request_.draft.begin(), request_.draft.begin() + kept);
  draws_.tokens.push_back(token);
  request_.sampler->remember(token, true);
  return std::move(draws_);
}

BlockDraws Judged::finish_with_next(int64_t kept) {
  if (!shape(kept)) return finish_with_fault(kept);
  return finish(kept, p_.pick(uniform(kept, Purpose::kCorrect)));
}

BlockDraws Judged::finish_with_fault(int64_t kept) {
  remembered_.keep(kept);
  draws_.tokens.assign(request_.draft.begin(), request_.draft.begin() + kept);
  return std::move(draws_);
}

}  // namespace

BlockDraws reject(const Logits& logits, const BlockRequest& request, DrawBuffers& buffers) {
  Judged judged(logits, request, buffers);
  return request.judge == Judge::kToken ? judged.by_token() : judged.by_block();
}

}  // namespace fewbit
