// Several threads that start one job at the same moment, for measurements.
#pragma once

#include <functional>

namespace fewbit {

// Runs job(thread) on `threads` new threads that wait for each other first; returns the seconds
// from then until the last has ended. Throws std::system_error where the system gives no thread.
double run_together(int threads, const std::function<void(int thread)>& job);

}  // namespace fewbit
