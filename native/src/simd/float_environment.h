// The floating-point state that every kernel runs under.
#pragma once

#include <cfenv>

namespace fewbit {

// Round to nearest, denormals kept, no traps: set for a scope and restored after it. The bits of a
// row must not depend on what another library did to the thread's control register.
class FloatEnvironment {
 public:
  FloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace fewbit
