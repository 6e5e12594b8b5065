// Checks of what Python gives.
#pragma once

#include <stdexcept>

namespace fewbit {

inline void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

}  // namespace fewbit
