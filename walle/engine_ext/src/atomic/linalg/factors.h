// Algorithms of dense linear algebra, each on one row-major matrix of float64; factorization.cpp applies them to stacks.
#pragma once
#include <cstdint>

#include "core/stop.h"

namespace walle {

struct MatrixSizes {
  std::int64_t m, n, k;  // rows and columns of a; k is defined by each algorithm
};

// Each returns null, or the reason why the matrix has no such result. Once `poll` is stopped, each returns at once and `out` is
// not whole.

// Solves a @ out = b for out (n, k), b (n, k), by elimination with partial pivoting. work: n * n.
const char* solve(const MatrixSizes& sizes, const double* a, const double* b, double* out, double* work, StopPoll& poll) noexcept;
// MatrixSizes a = out @ out.T; out (n, n) is lower triangular.
const char* cholesky(const MatrixSizes& sizes, const double* a, const double*, double* out, double*, StopPoll& poll) noexcept;
// out: m rows of q (k columns), k rows of r (n columns), rows max(n, k) long; Householder reflections. work: m * n + k + m * k.
const char* qr(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work, StopPoll& poll) noexcept;
// out (n + 1, n): eigenvalues, then the eigenvectors as columns. Householder tridiagonalisation and QL. work: n * n + 3 * n.
const char* eigh(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work, StopPoll& poll) noexcept;
// out (1, n): only the eigenvalues. work: n * n + 2 * n.
const char* eigenvalues(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work,
                        StopPoll& poll) noexcept;
// out (1, k): only the singular values. Householder bidiagonalisation and QL. work: m * n + 7 * k + max(m, n).
const char* singular_values(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work,
                            StopPoll& poll) noexcept;
// out (1 + m + n, k), k = min(m, n): singular values, u, v. One-sided Jacobi rotations. work: m * n + k * k + 2 * k.
const char* svd(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work, StopPoll& poll) noexcept;

}  // namespace walle
