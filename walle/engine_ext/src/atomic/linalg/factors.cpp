#include "atomic/linalg/factors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace walle {

namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// Eight partial sums, so that the order of additions leaves room for vectors.
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

// The length of a vector, whose squares may leave the range.
double length(const double* x, std::int64_t count) noexcept {
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(x[i]));
  if (most == 0 || !std::isfinite(most)) return most == 0 ? std::sqrt(dot(x, x, count)) : most;
  if (most > 1e-140 && most < 1e140) return std::sqrt(dot(x, x, count));
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += (x[i] / most) * (x[i] / most);
  return most * std::sqrt(sum);
}

// Makes x[0], x[1], ... the vector v with (I - tau v v') x = (beta, 0, ...) and v[0] = 1; tau is 0 where x is that already.
struct Reflection {
  double tau, beta;
};
Reflection reflection(double* x, std::int64_t count) noexcept {
  const double rest = length(x + 1, count - 1);
  const double head = x[0];
  x[0] = 1;
  if (rest == 0) return {0, head};
  const double beta = -std::copysign(std::hypot(head, rest), head);
  const double scale = 1 / (head - beta);
  for (std::int64_t i = 1; i < count; ++i) x[i] *= scale;
  return {(beta - head) / beta, beta};
}

}  // namespace

const char* solve(const Factors& sizes, const double* a, const double* b, double* out, double* work) noexcept {
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
      axpy(-factor, work + column * n + column + 1, work + row * n + column + 1, n - column - 1);
      axpy(-factor, out + column * k, out + row * k, k);
    }
  }
  for (std::int64_t row = n; row-- > 0;) {
    for (std::int64_t below = row + 1; below < n; ++below) axpy(-work[row * n + below], out + below * k, out + row * k, k);
    const double head = work[row * n + row];
    for (std::int64_t i = 0; i < k; ++i) out[row * k + i] /= head;
  }
  return nullptr;
}

const char* cholesky(const Factors& sizes, const double* a, const double*, double* out, double*) noexcept {
  const std::int64_t n = sizes.n;
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = out + i * n;
    for (std::int64_t j = 0; j < i; ++j) row[j] = (a[i * n + j] - dot(row, out + j * n, j)) / out[j * n + j];
    const double square = a[i * n + i] - dot(row, row, i);
    if (!(square > 0)) return "the matrix is not positive definite";
    row[i] = std::sqrt(square);
    std::fill(row + i + 1, row + n, 0.0);
  }
  return nullptr;
}

const char* qr(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept {
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k, width = std::max(n, k), steps = std::min(m, n);
  double *columns = work, *taus = work + m * n, *q = taus + k;  // both (columns, m)
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) columns[j * m + i] = a[i * n + j];
  std::fill(out, out + (m + k) * width, 0.0);
  double* r = out + m * width;
  for (std::int64_t step = 0; step < steps; ++step) {
    double* v = columns + step * m + step;
    const auto [tau, beta] = reflection(v, m - step);
    taus[step] = tau;
    for (std::int64_t j = step + 1; j < n; ++j) {
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
      const double* v = columns + step * m + step;
      axpy(-taus[step] * dot(v, column + step, m - step), v, column + step, m - step);
    }
  }
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < k; ++j) out[i * width + j] = q[j * m + i];
  return nullptr;
}

namespace {

// a (n, n) becomes tridiagonal: d on and e beside the diagonal, e[i] between i and i + 1. Row i of a then holds the vector of
// reflection i from column i + 1 on, and scale[i] its tau.
void tridiagonal(double* a, std::int64_t n, double* d, double* e, double* scale) noexcept {
  for (std::int64_t i = 0; i + 2 < n; ++i) {
    double* v = a + i * n + i + 1;
    const std::int64_t count = n - i - 1;
    const auto [tau, beta] = reflection(v, count);
    scale[i] = tau;
    e[i] = beta;
    d[i] = a[i * n + i];
    if (tau == 0) continue;
    double* p = e + i + 1;  // not yet filled
    double* rest = a + (i + 1) * n + i + 1;
    for (std::int64_t row = 0; row < count; ++row) p[row] = tau * dot(rest + row * n, v, count);
    const double half = tau / 2 * dot(p, v, count);
    axpy(-half, v, p, count);
    for (std::int64_t row = 0; row < count; ++row) {
      const double left = v[row], right = p[row];
      double* to = rest + row * n;
      for (std::int64_t column = 0; column < count; ++column) to[column] -= left * p[column] + right * v[column];
    }
  }
  for (std::int64_t i = std::max<std::int64_t>(n - 2, 0); i < n; ++i) d[i] = a[i * n + i];
  if (n > 1) e[n - 2] = a[(n - 2) * n + n - 1];
  if (n > 0) e[n - 1] = 0;
}

// z (n, n): the product of the reflections, transposed.
void reflected_identity(const double* a, std::int64_t n, const double* scale, double* z, double* line) noexcept {
  std::fill(z, z + n * n, 0.0);
  for (std::int64_t i = 0; i < n; ++i) z[i * n + i] = 1;
  for (std::int64_t i = n - 3; i >= 0; --i) {
    const double* v = a + i * n + i + 1;
    const std::int64_t count = n - i - 1;
    double* rest = z + (i + 1) * n + i + 1;  // q' times the reflection: each row loses its part along v
    for (std::int64_t row = 0; row < count; ++row) line[row] = scale[i] * dot(rest + row * n, v, count);
    for (std::int64_t row = 0; row < count; ++row) axpy(-line[row], v, rest + row * n, count);
  }
}

// Implicit QL with shifts on d and e; the rows of z, where there is one, go along. An e of at most `least` counts as 0.
bool diagonal(double* d, double* e, double* z, std::int64_t n, double least = 0) noexcept {
  constexpr int kMostSteps = 80;
  for (std::int64_t first = 0; first < n; ++first) {
    for (int step = 0;; ++step) {
      std::int64_t last = first;
      for (; last + 1 < n; ++last)
        if (std::fabs(e[last]) <= std::max(least, kEpsilon * (std::fabs(d[last]) + std::fabs(d[last + 1])))) break;
      if (last == first) break;
      if (step == kMostSteps) return false;
      double g = (d[first + 1] - d[first]) / (2 * e[first]);
      g = d[last] - d[first] + e[first] / (g + std::copysign(std::hypot(g, 1.0), g));
      double s = 1, c = 1, shift = 0;
      std::int64_t i = last - 1;
      for (; i >= first; --i) {
        const double f = s * e[i], b = c * e[i];
        double r = std::hypot(f, g);
        e[i + 1] = r;
        if (r == 0) {  // the matrix falls apart here
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

const char* eigh(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept {
  const std::int64_t n = sizes.n;
  double *z = work, *d = z + n * n, *e = d + n, *scale = e + n;
  double* matrix = out;  // n + 1 rows are more than it needs
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) matrix[i * n + j] = i >= j ? a[i * n + j] : a[j * n + i];
  tridiagonal(matrix, n, d, e, scale);
  reflected_identity(matrix, n, scale, z, matrix + n * n);
  if (!diagonal(d, e, z, n)) return "the eigenvalues did not converge";
  for (std::int64_t i = 0; i < n; ++i) {  // ascending, by selection: each moves one row
    std::int64_t least = i;
    for (std::int64_t j = i + 1; j < n; ++j)
      if (d[j] < d[least]) least = j;
    if (least != i) {
      std::swap(d[i], d[least]);
      std::swap_ranges(z + i * n, z + (i + 1) * n, z + least * n);
    }
  }
  std::copy_n(d, n, out);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) out[(1 + i) * n + j] = z[j * n + i];
  return nullptr;
}

const char* eigenvalues(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept {
  const std::int64_t n = sizes.n;
  double *matrix = work, *e = matrix + n * n, *scale = e + n;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) matrix[i * n + j] = i >= j ? a[i * n + j] : a[j * n + i];
  tridiagonal(matrix, n, out, e, scale);
  if (!diagonal(out, e, nullptr, n)) return "the eigenvalues did not converge";
  std::sort(out, out + n);
  return nullptr;
}

namespace {

// x (k rows of `count`, at least k) becomes lower bidiagonal by reflections from both sides: d on and e below the diagonal. `v`
// and `t` have room for a column and a row.
void bidiagonal(double* x, std::int64_t k, std::int64_t count, double* d, double* e, double* v, double* t) noexcept {
  for (std::int64_t i = 0; i < k; ++i) {
    double* along = x + i * count + i;
    const std::int64_t wide = count - i;
    const auto [tau, beta] = reflection(along, wide);
    d[i] = beta;
    for (std::int64_t j = i + 1; j < k && tau != 0; ++j) {
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
    for (std::int64_t j = 0; j < tall; ++j) axpy(v[j], x + (i + 1 + j) * count + i + 1, t, wide - 1);
    for (std::int64_t j = 0; j < tall; ++j) axpy(-down * v[j], t, x + (i + 1 + j) * count + i + 1, wide - 1);
  }
}

// The shorter lines of a matrix as rows of x, scaled by the power of two that is given back, so that squares stay in range.
double shorter_lines(const Factors& sizes, const double* a, double* x) noexcept {
  const std::int64_t m = sizes.m, n = sizes.n, count = std::max(m, n);
  for (std::int64_t i = 0; i < sizes.k; ++i)
    for (std::int64_t j = 0; j < count; ++j) x[i * count + j] = m >= n ? a[j * n + i] : a[i * n + j];
  double most = 0;
  for (std::int64_t i = 0; i < m * n; ++i) most = std::max(most, std::fabs(x[i]));
  const double scale = most > 0 && std::isfinite(most) ? std::exp2(-std::ilogb(most)) : 1;
  for (std::int64_t i = 0; i < m * n; ++i) x[i] *= scale;
  return scale;
}

}  // namespace

// The singular values are the eigenvalues, but for their signs, of the matrix with zeros on its diagonal and those of the
// bidiagonal one in turn beside it (Golub and Kahan).
const char* singular_values(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept {
  const std::int64_t k = sizes.k, count = std::max(sizes.m, sizes.n);
  double *x = work, *d = x + k * count, *e = d + 2 * k, *v = e + 2 * k, *t = v + k;
  const double scale = shorter_lines(sizes, a, x);
  double *on = t + count, *below = on + k;
  bidiagonal(x, k, count, on, below, v, t);
  double most = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    e[2 * i] = on[i];
    e[2 * i + 1] = i + 1 < k ? below[i] : 0;
    most = std::max(most, std::fabs(e[2 * i]) + std::fabs(e[2 * i + 1]));
  }
  std::fill(d, d + 2 * k, 0.0);
  if (!diagonal(d, e, nullptr, 2 * k, most * kEpsilon * 1e-3)) return "the singular values did not converge";
  std::sort(d, d + 2 * k, [](double left, double right) { return left > right; });
  for (std::int64_t i = 0; i < k; ++i) out[i] = std::max(d[i], 0.0) / scale;
  return nullptr;
}

namespace {

// Turns the rows of x (k, long) against each other until they are orthogonal; the rows of v (k, k) go along. Rows that are then
// still no more than the rounding errors of the longest, as a matrix of lower rank has them, become zeros: they turn for ever.
bool orthogonal(double* x, double* v, double* squares, std::int64_t k, std::int64_t count) noexcept {
  constexpr int kMostSweeps = 60, kUsualSweeps = 12;
  const double noise = kEpsilon * kEpsilon * static_cast<double>(count);  // of a square
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    for (std::int64_t i = 0; i < k; ++i) squares[i] = dot(x + i * count, x + i * count, count);
    if (sweep >= kUsualSweeps) {
      const double least = noise * *std::max_element(squares, squares + k);
      for (std::int64_t i = 0; i < k; ++i) {
        if (squares[i] > least) continue;
        std::fill_n(x + i * count, count, 0.0);
        squares[i] = 0;
      }
    }
    bool turned = false;
    for (std::int64_t p = 0; p + 1 < k; ++p)
      for (std::int64_t q = p + 1; q < k; ++q) {
        const double both = dot(x + p * count, x + q * count, count);
        if (!(std::fabs(both) > kEpsilon * std::sqrt(squares[p]) * std::sqrt(squares[q])) || both == 0) continue;
        turned = true;
        const double zeta = (squares[q] - squares[p]) / (2 * both);
        const double t = std::copysign(1.0, zeta) / (std::fabs(zeta) + std::hypot(1.0, zeta));
        const double c = 1 / std::hypot(1.0, t), s = c * t;
        rotate(x + p * count, x + q * count, c, s, count);
        rotate(v + p * k, v + q * k, c, s, k);
        squares[p] -= t * both;
        squares[q] += t * both;
        for (const std::int64_t one : {p, q})  // little is left of a difference
          if (squares[one] < 0.1 * std::fabs(t * both)) squares[one] = dot(x + one * count, x + one * count, count);
      }
    if (!turned) return true;
  }
  return false;
}

// A unit vector orthogonal to rows 0 to i - 1 of x, as row i.
void complete(double* x, std::int64_t i, std::int64_t count) noexcept {
  double* row = x + i * count;
  for (std::int64_t unit = 0; unit < count; ++unit) {
    std::fill(row, row + count, 0.0);
    row[unit] = 1;
    for (int twice = 0; twice < 2; ++twice)
      for (std::int64_t other = 0; other < i; ++other) axpy(-dot(row, x + other * count, count), x + other * count, row, count);
    const double size = length(row, count);
    if (size * size * static_cast<double>(2 * count) < 1) continue;  // some unit vector has more than this left
    for (std::int64_t j = 0; j < count; ++j) row[j] /= size;
    return;
  }
}

}  // namespace

const char* svd(const Factors& sizes, const double* a, const double*, double* out, double* work) noexcept {
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k, count = std::max(m, n);
  // The k shorter lines of the matrix as rows of x: columns of a tall one, rows of a wide one.
  double *x = work, *v = x + m * n, *squares = v + k * k, *sizes_of = squares + k;
  const bool tall = m >= n;
  const double scale = shorter_lines(sizes, a, x);
  std::fill(v, v + k * k, 0.0);
  for (std::int64_t i = 0; i < k; ++i) v[i * k + i] = 1;
  if (!orthogonal(x, v, squares, k, count)) return "the singular values did not converge";
  for (std::int64_t i = 0; i < k; ++i) sizes_of[i] = length(x + i * count, count);
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int64_t best = std::max_element(sizes_of + i, sizes_of + k) - sizes_of;
    if (best == i) continue;
    std::swap(sizes_of[i], sizes_of[best]);
    std::swap_ranges(x + i * count, x + (i + 1) * count, x + best * count);
    std::swap_ranges(v + i * k, v + (i + 1) * k, v + best * k);
  }
  for (std::int64_t i = 0; i < k; ++i) {
    if (sizes_of[i] > kEpsilon * sizes_of[0] * 1e-3)
      for (std::int64_t j = 0; j < count; ++j) x[i * count + j] /= sizes_of[i];
    else
      complete(x, i, count);
    out[i] = sizes_of[i] / scale;
  }
  double *u = out + k, *right = u + m * k;
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t j = 0; j < m; ++j) u[j * k + i] = tall ? x[i * count + j] : v[i * k + j];
    for (std::int64_t j = 0; j < n; ++j) right[j * k + i] = tall ? v[i * k + j] : x[i * count + j];
  }
  return nullptr;
}

}  // namespace walle
