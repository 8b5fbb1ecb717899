#include "atomic/linalg/factors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace walle {

namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// Eight partial sums, so that the compiler may vectorise the additions.
double dot(const double* a, const double* b, std::int64_t count) noexcept {
  double part[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::int64_t j = 0; j < 8; ++j) part[j] += a[i + j] * b[i + j];
  for (; i < count; ++i) part[0] += a[i] * b[i];
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

// y += factor * x
void axpy(double factor, const double* x, double* y, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

// (x, y) = (c x - s y, s x + c y)
void rotate(double* x, double* y, double c, double s, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const double left = x[i], right = y[i];
    x[i] = c * left - s * right;
    y[i] = s * left + c * right;
  }
}

// Returns the Euclidean norm of a vector, scaled where its squares would overflow or underflow.
double norm(const double* x, std::int64_t count) noexcept {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  if (largest == 0 || !std::isfinite(largest)) return largest == 0 ? std::sqrt(dot(x, x, count)) : largest;
  if (largest > 1e-140 && largest < 1e140) return std::sqrt(dot(x, x, count));
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += (x[i] / largest) * (x[i] / largest);
  return largest * std::sqrt(sum);
}

// Replaces x by the vector v of a Householder reflection: (I - tau v v') x = (beta, 0, ...) and v[0] = 1. tau is 0 where x has
// that form already.
struct Reflection {
  double tau, beta;
};
Reflection reflection(double* x, std::int64_t count) noexcept {
  const double rest = norm(x + 1, count - 1);
  const double head = x[0];
  x[0] = 1;
  if (rest == 0) return {0, head};
  const double beta = -std::copysign(std::hypot(head, rest), head);
  const double scale = 1 / (head - beta);
  for (std::int64_t i = 1; i < count; ++i) x[i] *= scale;
  return {(beta - head) / beta, beta};
}

// Writes the transpose of `from` (rows, columns), whose rows are `from_row` apart, to rows that are `to_row` apart. Returns false
// where it was stopped.
bool transpose(const double* from, std::int64_t rows, std::int64_t columns, std::int64_t from_row, double* to,
               std::int64_t to_row, StopPoll& poll) noexcept {
  constexpr std::int64_t kCacheMiss = 4;  // elements
  for (std::int64_t i = 0; i < columns; ++i) {
    if (!poll.proceed(kCacheMiss * rows)) return false;
    for (std::int64_t j = 0; j < rows; ++j) to[i * to_row + j] = from[j * from_row + i];
  }
  return true;
}

}  // namespace

const char* solve(const MatrixSizes& sizes, const double* a, const double* b, double* out, double* work,
                  StopPoll& poll) noexcept {
  const std::int64_t n = sizes.n, k = sizes.k;
  std::copy_n(a, n * n, work);
  std::copy_n(b, n * k, out);
  for (std::int64_t column = 0; column < n; ++column) {
    std::int64_t pivot = column;
    for (std::int64_t row = column + 1; row < n; ++row)
      if (std::fabs(work[row * n + column]) > std::fabs(work[pivot * n + column])) pivot = row;
    if (pivot != column) {
      std::swap_ranges(work + pivot * n, work + (pivot + 1) * n, work + column * n);
      std::swap_ranges(out + pivot * k, out + (pivot + 1) * k, out + column * k);
    }
    const double head = work[column * n + column];
    if (head == 0) return "the matrix is singular";
    for (std::int64_t row = column + 1; row < n; ++row) {
      const double factor = work[row * n + column] / head;
      if (factor == 0) continue;
      if (!poll.proceed(n - column + k)) return nullptr;
      axpy(-factor, work + column * n + column + 1, work + row * n + column + 1, n - column - 1);
      axpy(-factor, out + column * k, out + row * k, k);
    }
  }
  for (std::int64_t row = n; row-- > 0;) {
    for (std::int64_t below = row + 1; below < n; ++below) {
      if (!poll.proceed(k)) return nullptr;
      axpy(-work[row * n + below], out + below * k, out + row * k, k);
    }
    const double head = work[row * n + row];
    for (std::int64_t i = 0; i < k; ++i) out[row * k + i] /= head;
  }
  return nullptr;
}

const char* cholesky(const MatrixSizes& sizes, const double* a, const double*, double* out, double*, StopPoll& poll) noexcept {
  const std::int64_t n = sizes.n;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!poll.proceed(i * i / 4)) return nullptr;
    double* row = out + i * n;
    for (std::int64_t j = 0; j < i; ++j) row[j] = (a[i * n + j] - dot(row, out + j * n, j)) / out[j * n + j];
    const double square = a[i * n + i] - dot(row, row, i);
    if (!(square > 0)) return "the matrix is not positive definite";
    row[i] = std::sqrt(square);
    std::fill(row + i + 1, row + n, 0.0);
  }
  return nullptr;
}

const char* qr(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work, StopPoll& poll) noexcept {
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k, width = std::max(n, k), steps = std::min(m, n);
  double *columns = work, *taus = work + m * n, *q = taus + k;  // both (columns, m)
  if (!transpose(a, m, n, n, columns, m, poll)) return nullptr;
  std::fill(out, out + (m + k) * width, 0.0);
  double* r = out + m * width;
  for (std::int64_t step = 0; step < steps; ++step) {
    double* v = columns + step * m + step;
    const auto [tau, beta] = reflection(v, m - step);
    taus[step] = tau;
    for (std::int64_t j = step + 1; j < n; ++j) {
      if (!poll.proceed(m - step)) return nullptr;
      double* other = columns + j * m + step;
      axpy(-tau * dot(v, other, m - step), v, other, m - step);
    }
    r[step * width + step] = beta;
  }
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = 0; i < std::min(j, k); ++i) r[i * width + j] = columns[j * m + i];
  for (std::int64_t j = 0; j < k; ++j) {
    double* column = q + j * m;
    std::fill(column, column + m, 0.0);
    column[j] = 1;
    for (std::int64_t step = std::min(j, steps - 1); step >= 0; --step) {
      if (!poll.proceed(m - step)) return nullptr;
      const double* v = columns + step * m + step;
      axpy(-taus[step] * dot(v, column + step, m - step), v, column + step, m - step);
    }
  }
  transpose(q, k, m, m, out, width, poll);
  return nullptr;
}

namespace {

// Writes the symmetric matrix (n, n) whose lower triangle is that of `a`. Returns false where it was stopped.
bool mirror_lower(const double* a, std::int64_t n, double* matrix, StopPoll& poll) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!poll.proceed(2 * n)) return false;
    for (std::int64_t j = 0; j < n; ++j) matrix[i * n + j] = i >= j ? a[i * n + j] : a[j * n + i];
  }
  return true;
}

// Reduces a (n, n) to tridiagonal form: d is the diagonal, e the off-diagonal, e[i] between i and i + 1. Row i of a then holds
// the vector of reflection i from column i + 1 on, and scale[i] its tau.
void tridiagonal(double* a, std::int64_t n, double* d, double* e, double* scale, StopPoll& poll) noexcept {
  for (std::int64_t i = 0; i + 2 < n; ++i) {
    double* v = a + i * n + i + 1;
    const std::int64_t count = n - i - 1;
    const auto [tau, beta] = reflection(v, count);
    scale[i] = tau;
    e[i] = beta;
    d[i] = a[i * n + i];
    if (tau == 0) continue;
    double* p = e + i + 1;  // elements that are not filled yet
    double* rest = a + (i + 1) * n + i + 1;
    for (std::int64_t row = 0; row < count; ++row) {
      if (!poll.proceed(count)) return;
      p[row] = tau * dot(rest + row * n, v, count);
    }
    const double half = tau / 2 * dot(p, v, count);
    axpy(-half, v, p, count);
    for (std::int64_t row = 0; row < count; ++row) {
      if (!poll.proceed(count)) return;
      const double left = v[row], right = p[row];
      double* to = rest + row * n;
      for (std::int64_t column = 0; column < count; ++column) to[column] -= left * p[column] + right * v[column];
    }
  }
  for (std::int64_t i = std::max<std::int64_t>(n - 2, 0); i < n; ++i) d[i] = a[i * n + i];
  if (n > 1) e[n - 2] = a[(n - 2) * n + n - 1];
  if (n > 0) e[n - 1] = 0;
}

// Computes z (n, n), the transposed product of the reflections.
void accumulate_reflections(const double* a, std::int64_t n, const double* scale, double* z, double* line,
                            StopPoll& poll) noexcept {
  std::fill(z, z + n * n, 0.0);
  for (std::int64_t i = 0; i < n; ++i) z[i * n + i] = 1;
  for (std::int64_t i = n - 3; i >= 0; --i) {
    const double* v = a + i * n + i + 1;
    const std::int64_t count = n - i - 1;
    double* rest = z + (i + 1) * n + i + 1;  // z times the reflection: subtract each row's component along v
    for (std::int64_t row = 0; row < count; ++row) {
      if (!poll.proceed(count)) return;
      line[row] = scale[i] * dot(rest + row * n, v, count);
    }
    for (std::int64_t row = 0; row < count; ++row) {
      if (!poll.proceed(count)) return;
      axpy(-line[row], v, rest + row * n, count);
    }
  }
}

// Diagonalises a tridiagonal matrix (d, e) by implicit QL with shifts, and rotates the rows of z with it unless z is null. An
// absolute e of at most `negligible` counts as 0. Returns false where it does not converge.
bool diagonalize(double* d, double* e, double* z, std::int64_t n, StopPoll& poll, double negligible = 0) noexcept {
  constexpr int kMaxSteps = 80;
  constexpr std::int64_t kRotation = 16;  // elements whose time one rotation takes
  for (std::int64_t first = 0; first < n; ++first) {
    for (int step = 0;; ++step) {
      std::int64_t last = first;
      for (; last + 1 < n; ++last)
        if (std::fabs(e[last]) <= std::max(negligible, kEpsilon * (std::fabs(d[last]) + std::fabs(d[last + 1])))) break;
      if (last == first) break;
      if (step == kMaxSteps) return false;
      double g = (d[first + 1] - d[first]) / (2 * e[first]);
      g = d[last] - d[first] + e[first] / (g + std::copysign(std::hypot(g, 1.0), g));
      double s = 1, c = 1, shift = 0;
      std::int64_t i = last - 1;
      for (; i >= first; --i) {
        if (!poll.proceed(kRotation + (z != nullptr ? n : 0))) return true;
        const double f = s * e[i], b = c * e[i];
        double r = std::hypot(f, g);
        e[i + 1] = r;
        if (r == 0) {  // the matrix splits into two here
          d[i + 1] -= shift;
          e[last] = 0;
          break;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - shift;
        r = (d[i] - g) * s + 2 * c * b;
        shift = s * r;
        d[i + 1] = g + shift;
        g = c * r - b;
        if (z != nullptr) rotate(z + i * n, z + (i + 1) * n, c, s, n);
      }
      if (i >= first) continue;
      d[first] -= shift;
      e[first] = g;
      e[last] = 0;
    }
  }
  return true;
}

}  // namespace

const char* eigh(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work, StopPoll& poll) noexcept {
  const std::int64_t n = sizes.n;
  double *z = work, *d = z + n * n, *e = d + n, *scale = e + n;
  double* matrix = out;  // used as scratch: it has room for n + 1 rows
  if (!mirror_lower(a, n, matrix, poll)) return nullptr;
  tridiagonal(matrix, n, d, e, scale, poll);
  if (poll.stopped()) return nullptr;
  accumulate_reflections(matrix, n, scale, z, matrix + n * n, poll);
  if (poll.stopped()) return nullptr;
  if (!diagonalize(d, e, z, n, poll)) return "the eigenvalues did not converge";
  for (std::int64_t i = 0; i < n; ++i) {  // selection sort in ascending order, which swaps each row at most once
    if (!poll.proceed(2 * n)) return nullptr;
    std::int64_t smallest = i;
    for (std::int64_t j = i + 1; j < n; ++j)
      if (d[j] < d[smallest]) smallest = j;
    if (smallest != i) {
      std::swap(d[i], d[smallest]);
      std::swap_ranges(z + i * n, z + (i + 1) * n, z + smallest * n);
    }
  }
  std::copy_n(d, n, out);
  transpose(z, n, n, n, out + n, n, poll);
  return nullptr;
}

const char* eigenvalues(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work,
                        StopPoll& poll) noexcept {
  const std::int64_t n = sizes.n;
  double *matrix = work, *e = matrix + n * n, *scale = e + n;
  if (!mirror_lower(a, n, matrix, poll)) return nullptr;
  tridiagonal(matrix, n, out, e, scale, poll);
  if (poll.stopped()) return nullptr;
  if (!diagonalize(out, e, nullptr, n, poll)) return "the eigenvalues did not converge";
  if (!poll.stopped()) std::sort(out, out + n);
  return nullptr;
}

namespace {

// Reduces x (k rows of `count` >= k columns) to lower bidiagonal form by reflections from both sides: d is the diagonal, e the
// subdiagonal. `v` and `t` are scratch for a column and a row.
void bidiagonalize(double* x, std::int64_t k, std::int64_t count, double* d, double* e, double* v, double* t,
                   StopPoll& poll) noexcept {
  for (std::int64_t i = 0; i < k; ++i) {
    double* along = x + i * count + i;
    const std::int64_t wide = count - i;
    const auto [tau, beta] = reflection(along, wide);
    d[i] = beta;
    for (std::int64_t j = i + 1; j < k && tau != 0; ++j) {
      if (!poll.proceed(wide)) return;
      double* row = x + j * count + i;
      axpy(-tau * dot(along, row, wide), along, row, wide);
    }
    const std::int64_t tall = k - i - 1;
    if (tall == 0) break;
    for (std::int64_t j = 0; j < tall; ++j) v[j] = x[(i + 1 + j) * count + i];
    const auto [down, below] = reflection(v, tall);
    e[i] = below;
    if (down == 0) continue;
    std::fill(t, t + wide - 1, 0.0);
    for (std::int64_t j = 0; j < tall; ++j) {
      if (!poll.proceed(wide)) return;
      axpy(v[j], x + (i + 1 + j) * count + i + 1, t, wide - 1);
    }
    for (std::int64_t j = 0; j < tall; ++j) {
      if (!poll.proceed(wide)) return;
      axpy(-down * v[j], t, x + (i + 1 + j) * count + i + 1, wide - 1);
    }
  }
}

// Copies a matrix to x, transposed if it is tall so that x has k = min(m, n) rows, and scales it by a power of two so that
// squares stay in range. Returns that scale.
double copy_wide_scaled(const MatrixSizes& sizes, const double* a, double* x, StopPoll& poll) noexcept {
  const std::int64_t m = sizes.m, n = sizes.n, count = std::max(m, n);
  if (m >= n)
    transpose(a, m, n, n, x, count, poll);
  else
    std::copy_n(a, m * n, x);
  if (poll.stopped()) return 1;
  double largest = 0;
  for (std::int64_t i = 0; i < m * n; ++i) largest = std::max(largest, std::fabs(x[i]));
  const double scale = largest > 0 && std::isfinite(largest) ? std::exp2(-std::ilogb(largest)) : 1;
  for (std::int64_t i = 0; i < m * n; ++i) x[i] *= scale;
  return scale;
}

}  // namespace

// The singular values are the absolute eigenvalues of the tridiagonal matrix that has a zero diagonal and the bidiagonal matrix's
// diagonal and subdiagonal elements, interleaved, beside it (Golub and Kahan).
const char* singular_values(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work,
                            StopPoll& poll) noexcept {
  const std::int64_t k = sizes.k, count = std::max(sizes.m, sizes.n);
  double *x = work, *d = x + k * count, *e = d + 2 * k, *v = e + 2 * k, *t = v + k;
  const double scale = copy_wide_scaled(sizes, a, x, poll);
  if (poll.stopped()) return nullptr;
  double *diagonal = t + count, *below = diagonal + k;
  bidiagonalize(x, k, count, diagonal, below, v, t, poll);
  if (poll.stopped()) return nullptr;
  double largest = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    e[2 * i] = diagonal[i];
    e[2 * i + 1] = i + 1 < k ? below[i] : 0;
    largest = std::max(largest, std::fabs(e[2 * i]) + std::fabs(e[2 * i + 1]));
  }
  std::fill(d, d + 2 * k, 0.0);
  if (!diagonalize(d, e, nullptr, 2 * k, poll, largest * kEpsilon * 1e-3)) return "the singular values did not converge";
  if (poll.stopped()) return nullptr;
  std::sort(d, d + 2 * k, [](double left, double right) { return left > right; });
  for (std::int64_t i = 0; i < k; ++i) out[i] = std::max(d[i], 0.0) / scale;
  return nullptr;
}

namespace {

// Rotates pairs of rows of x (k, count) until all are orthogonal, and the rows of v (k, k) with them. Rows that are then still no
// longer than the rounding errors of the longest row, as in a matrix of lower rank, are set to zero, because their rotations
// would never end. Returns false where it does not converge.
bool orthogonalize(double* x, double* v, double* squares, std::int64_t k, std::int64_t count, StopPoll& poll) noexcept {
  constexpr int kMaxSweeps = 60, kUsualSweeps = 12;
  const double noise = kEpsilon * kEpsilon * static_cast<double>(count);  // rounding error of a square
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    for (std::int64_t i = 0; i < k; ++i) squares[i] = dot(x + i * count, x + i * count, count);
    if (sweep >= kUsualSweeps) {
      const double negligible = noise * *std::max_element(squares, squares + k);
      for (std::int64_t i = 0; i < k; ++i) {
        if (squares[i] > negligible) continue;
        std::fill_n(x + i * count, count, 0.0);
        squares[i] = 0;
      }
    }
    bool rotated = false;
    for (std::int64_t p = 0; p + 1 < k; ++p)
      for (std::int64_t q = p + 1; q < k; ++q) {
        if (!poll.proceed(2 * count)) return true;
        const double product = dot(x + p * count, x + q * count, count);
        if (!(std::fabs(product) > kEpsilon * std::sqrt(squares[p]) * std::sqrt(squares[q])) || product == 0) continue;
        rotated = true;
        const double zeta = (squares[q] - squares[p]) / (2 * product);
        const double t = std::copysign(1.0, zeta) / (std::fabs(zeta) + std::hypot(1.0, zeta));
        const double c = 1 / std::hypot(1.0, t), s = c * t;
        rotate(x + p * count, x + q * count, c, s, count);
        rotate(v + p * k, v + q * k, c, s, k);
        squares[p] -= t * product;
        squares[q] += t * product;
        for (const std::int64_t row : {p, q})  // recomputed where the difference cancelled most digits
          if (squares[row] < 0.1 * std::fabs(t * product)) squares[row] = dot(x + row * count, x + row * count, count);
      }
    if (!rotated) return true;
  }
  return false;
}

// Sets row i of x to a unit vector that is orthogonal to rows 0 to i - 1.
void complete_basis(double* x, std::int64_t i, std::int64_t count, StopPoll& poll) noexcept {
  double* row = x + i * count;
  for (std::int64_t unit = 0; unit < count; ++unit) {
    std::fill(row, row + count, 0.0);
    row[unit] = 1;
    for (int twice = 0; twice < 2; ++twice)
      for (std::int64_t other = 0; other < i; ++other) {
        if (!poll.proceed(count)) return;
        axpy(-dot(row, x + other * count, count), x + other * count, row, count);
      }
    const double size = norm(row, count);
    if (size * size * static_cast<double>(2 * count) < 1) continue;  // at least one unit vector keeps a larger part
    for (std::int64_t j = 0; j < count; ++j) row[j] /= size;
    return;
  }
}

}  // namespace

const char* svd(const MatrixSizes& sizes, const double* a, const double*, double* out, double* work, StopPoll& poll) noexcept {
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k, count = std::max(m, n);
  // Rows of x are the columns of a tall matrix, the rows of a wide one.
  double *x = work, *v = x + m * n, *squares = v + k * k, *values = squares + k;
  const bool tall = m >= n;
  const double scale = copy_wide_scaled(sizes, a, x, poll);
  if (poll.stopped()) return nullptr;
  std::fill(v, v + k * k, 0.0);
  for (std::int64_t i = 0; i < k; ++i) v[i * k + i] = 1;
  if (!orthogonalize(x, v, squares, k, count, poll)) return "the singular values did not converge";
  if (poll.stopped()) return nullptr;
  for (std::int64_t i = 0; i < k; ++i) values[i] = norm(x + i * count, count);
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int64_t best = std::max_element(values + i, values + k) - values;
    if (best == i) continue;
    std::swap(values[i], values[best]);
    std::swap_ranges(x + i * count, x + (i + 1) * count, x + best * count);
    std::swap_ranges(v + i * k, v + (i + 1) * k, v + best * k);
  }
  for (std::int64_t i = 0; i < k; ++i) {
    if (values[i] > kEpsilon * values[0] * 1e-3)
      for (std::int64_t j = 0; j < count; ++j) x[i * count + j] /= values[i];
    else
      complete_basis(x, i, count, poll);
    if (!poll.proceed(count)) return nullptr;
    out[i] = values[i] / scale;
  }
  double *u = out + k, *right = u + m * k;
  const double *of_rows = tall ? x : v, *of_columns = tall ? v : x;  // count = m and k = n where it is tall
  if (transpose(of_rows, k, m, m, u, k, poll)) transpose(of_columns, k, n, n, right, k, poll);
  return nullptr;
}

}  // namespace walle
