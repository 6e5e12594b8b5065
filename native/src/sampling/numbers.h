// Where a sequence's random numbers come from: keys, or a script.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "sampling/philox.h"

namespace fewbit {

// `Purpose` of src/fewbit/keyed_random.py.
enum class Purpose : uint64_t { kToken = 0, kDraft = 1, kAccept = 2, kCorrect = 3 };

// Numbers laid down beforehand, for enumerating what a rule does with them. Not for two threads.
class ScriptedNumbers {
 public:
  // position, purpose, start
  using Key = std::tuple<uint64_t, uint64_t, uint64_t>;

  explicit ScriptedNumbers(std::map<Key, double> numbers) : numbers_(std::move(numbers)) {}

  // The number of a key, 0 where the script has none.
  double at(const Key& key) {
    asked_.push_back(key);
    const auto found = numbers_.find(key);
    return found == numbers_.end() ? 0 : found->second;
  }

  // The keys asked for so far, in order.
  const std::vector<Key>& asked() const { return asked_; }

 private:
  std::map<Key, double> numbers_;
  std::vector<Key> asked_;
};

}  // namespace fewbit
