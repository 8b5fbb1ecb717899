// The algorithms behind factorization.cpp, each on one row-major matrix of float64.
#pragma once
#include <cstdint>

namespace walle {

struct Factors {
  std::int64_t m, n, k;  // rows and columns of a; k as each says
};

// Each gives null, or what is wrong with the matrix.

// out (n, k): a @ out = b (n, k), by elimination with partial pivoting. work: n * n.
const char* solve(const Factors& sizes, const double* a, const double* b, double* out, double* work) noexcept;
// out (n, n), lower: out @ out.T = a.
const char* cholesky(const Factors& sizes, const double* a, const double*, double* out, double*) noexcept;
// out: m rows of q (k columns), k rows of r (n columns), rows max(n, k) long; Householder reflections. work: m * n + k + m * k.
const char* qr(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept;
// out (n + 1, n): eigenvalues, then eigenvectors as columns. Householder tridiagonalisation and QL. work: n * n + 3 * n.
const char* eigh(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept;
// out (1, n): the eigenvalues alone. work: n * n + 2 * n.
const char* eigenvalues(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept;
// out (1, k): the singular values alone. Householder bidiagonalisation and QL. work: m * n + 7 * k + max(m, n).
const char* singular_values(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept;
// out (1 + m + n, k), k = min(m, n): singular values, u, v. One-sided Jacobi rotations. work: m * n + k * k + 2 * k.
const char* svd(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept;

}  // namespace walle
