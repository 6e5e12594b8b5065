// Small symmetric systems, one a lane, for refine.h over S.
#pragma once

#include "simd/simd.h"
#include "solvers/refine.h"

namespace fewbit {

// matrix [unknowns][unknowns][64], whose upper triangle is the system's and stays; the lower one
// takes the Cholesky factor below its diagonal, `roots` that diagonal.
template <class S>
struct SmallSystem {
  using F32 = typename S::F32;
  // What is added to the diagonal, as a part of the trace: groups whose levels are all zero have
  // no say and stay where they are.
  static constexpr float kRidge = 1e-6f;

  float *matrix, *right, *solution, *roots;
  int64_t unknowns;

  FEWBIT_INLINE F32 at(const float* rows, int64_t row) {
    return S::load(rows + row * kRoundingRows);
  }
  float* cell(int64_t i, int64_t k) const { return matrix + (i * unknowns + k) * kRoundingRows; }
  // An element of the system, whichever triangle it is asked for.
  F32 element(int64_t i, int64_t k) const { return S::load(i < k ? cell(i, k) : cell(k, i)); }

  F32 ridge() const {
    F32 trace = S::zero_f32();
    for (int64_t i = 0; i < unknowns; ++i) trace = S::add(trace, S::load(cell(i, i)));
    return S::max(S::mul(trace, S::set1(kRidge)), S::set1(1e-30f));
  }

  void factor() const {
    const F32 ridge = this->ridge();
    for (int64_t i = 0; i < unknowns; ++i) {
      F32 pivot = S::add(S::load(cell(i, i)), ridge);
      for (int64_t m = 0; m < i; ++m) {
        const F32 l = S::load(cell(i, m));
        pivot = S::fma(S::neg(l), l, pivot);
      }
      // What rounding leaves of a singular system is no pivot.
      const F32 root = S::sqrt(S::max(pivot, ridge));
      S::store(roots + i * kRoundingRows, root);
      for (int64_t k = i + 1; k < unknowns; ++k) {
        F32 sum = S::load(cell(i, k));
        for (int64_t m = 0; m < i; ++m)
          sum = S::fma(S::neg(S::load(cell(i, m))), S::load(cell(k, m)), sum);
        S::store(cell(k, i), S::div(sum, root));
      }
    }
  }

  void solve() const {
    factor();
    for (int64_t i = 0; i < unknowns; ++i) {
      F32 sum = at(right, i);
      for (int64_t m = 0; m < i; ++m)
        sum = S::fma(S::neg(S::load(cell(i, m))), at(solution, m), sum);
      S::store(solution + i * kRoundingRows, S::div(sum, at(roots, i)));
    }
    for (int64_t i = unknowns - 1; i >= 0; --i) {
      F32 sum = at(solution, i);
      for (int64_t k = i + 1; k < unknowns; ++k)
        sum = S::fma(S::neg(S::load(cell(k, i))), at(solution, k), sum);
      S::store(solution + i * kRoundingRows, S::div(sum, at(roots, i)));
    }
  }
};

}  // namespace fewbit
