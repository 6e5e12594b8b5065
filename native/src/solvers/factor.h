// The factor that GPTQ rounds with: H = M^T M with M lower triangular.
//
// Rows are eliminated from the last to the first, so that no matrix is reversed or transposed on
// the way: with the rows behind j known,
//
//     M_jj^2 = H_jj - sum over i > j of M_ij^2,
//     M_jk   = (H_jk - sum over i > j of M_ij M_ik) / M_jj     for k < j.
//
// In float32. What that loses does not depend on how unequal H's diagonal is: Cholesky's rounding
// errors are those of the matrix scaled to a unit diagonal (Demmel 1989), whose least eigenvalue
// is at least 0.09 where a tenth of each diagonal element was added (methods/hessian.py).
#pragma once

#include <cstdint>

#include "executor/thread_pool.h"
#include "linear/linear.h"

namespace fewbit {

// A symmetric matrix, its rows and columns in another order.
struct Permuted {
  const float* matrix;  // [columns][columns], both triangles
  int64_t columns;
  const int64_t* order;    // [columns], which row of `matrix` comes first, second, ...
  double unit;             // what elements are divided by
  const double* diagonal;  // [columns], in place of the matrix's: in that order and divided already
};

struct FactorResult {
  float* feedback;  // [columns][columns]: M_jk / M_jj, ones on the diagonal and zeros above
  float* variance;  // [columns]: M_jj^2
};

// Returns false, with results that mean nothing, where the matrix is not positive definite. The
// same bits for every number of threads and every instruction set.
bool factor_lower(const Permuted& input, const FactorResult& result, Isa isa, ThreadPool& pool);

}  // namespace fewbit
