#include "search/cost_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace walle::pbqp {

namespace {

// These compile to one instruction each, unlike std::min and std::max of references.
constexpr auto smaller = [](double a, double b) noexcept { return a < b ? a : b; };
constexpr auto larger = [](double a, double b) noexcept { return a > b ? a : b; };

// Four chains, because one would wait for each comparison.
template <class F>
double reduced(const double* x, std::size_t count, double start, F&& f) noexcept {
  double r0 = start, r1 = start, r2 = start, r3 = start;
  std::size_t j = 0;
  for (; j + 4 <= count; j += 4) {
    r0 = f(x[j], r0);
    r1 = f(x[j + 1], r1);
    r2 = f(x[j + 2], r2);
    r3 = f(x[j + 3], r3);
  }
  for (; j < count; ++j) r0 = f(x[j], r0);
  return f(f(r0, r1), f(r2, r3));
}

// to[j] = min(to[j], x[k] + b[k, j]) for the given k, of four rows for each load of the result.
void lower(double* __restrict to, const double* x, const CostMatrix& b, const int* used, int count) noexcept {
  int n = 0;
  for (; n + 4 <= count; n += 4) {
    const double x0 = x[used[n]], x1 = x[used[n + 1]], x2 = x[used[n + 2]], x3 = x[used[n + 3]];
    const double* __restrict b0 = b.row(used[n]), * __restrict b1 = b.row(used[n + 1]);
    const double* __restrict b2 = b.row(used[n + 2]), * __restrict b3 = b.row(used[n + 3]);
    for (int j = 0; j < b.columns; ++j)
      to[j] = smaller(smaller(smaller(x0 + b0[j], x1 + b1[j]), smaller(x2 + b2[j], x3 + b3[j])), to[j]);
  }
  for (; n < count; ++n) {
    const double x0 = x[used[n]];
    const double* __restrict b0 = b.row(used[n]);
    for (int j = 0; j < b.columns; ++j) to[j] = smaller(x0 + b0[j], to[j]);
  }
}

}  // namespace

CostMatrix transposed(const CostMatrix& matrix) {
  CostMatrix result(matrix.columns, matrix.rows);
  constexpr int kTile = 8;  // a cache line
  for (int first = 0; first < matrix.rows; first += kTile) {
    const int last = std::min(first + kTile, matrix.rows);
    for (int j = 0; j < matrix.columns; ++j) {
      double* to = result.mutable_row(j);
      for (int i = first; i < last; ++i) to[i] = matrix.at(i, j);
    }
  }
  return result;
}

CostMatrix selected(const CostMatrix& matrix, const std::vector<int>& rows, const std::vector<int>& columns) {
  const bool all_rows = static_cast<int>(rows.size()) == matrix.rows;
  if (static_cast<int>(columns.size()) == matrix.columns)
    return all_rows ? CostMatrix::view(matrix.rows, matrix.columns, matrix.data()) : selected_rows(matrix, rows);
  return selected_columns(all_rows ? CostMatrix::view(matrix.rows, matrix.columns, matrix.data()) : selected_rows(matrix, rows),
                          columns);
}

CostMatrix selected_rows(const CostMatrix& matrix, const std::vector<int>& rows) {
  CostMatrix result(static_cast<int>(rows.size()), matrix.columns);
  double* to = result.mutable_row(0);
  for (const int i : rows) to = std::copy_n(matrix.row(i), matrix.columns, to);
  return result;
}

CostMatrix selected_columns(const CostMatrix& matrix, const std::vector<int>& columns) {
  CostMatrix result(matrix.rows, static_cast<int>(columns.size()));
  double* to = result.mutable_row(0);
  for (int i = 0; i < matrix.rows; ++i) {
    const double* from = matrix.row(i);
    for (const int j : columns) *to++ = from[j];
  }
  return result;
}

CostMatrix min_plus(const CostMatrix& a, const CostMatrix& b) {
  CostMatrix result(a.rows, b.columns, kInfinity);
  const std::vector<double> least = row_minima(b);
  std::vector<int> used(static_cast<std::size_t>(a.columns));
  for (int i = 0; i < a.rows; ++i) {
    double* to = result.mutable_row(i);
    const double* x = a.row(i);
    // The cheapest k first: most of the others are then above every element of the result.
    double lowest = kInfinity, sum = 0;
    for (int k = 0; k < a.columns; ++k) {
      lowest = smaller(x[k], lowest);
      sum += x[k];
    }
    const double pivot = (lowest + sum / a.columns) / 2;
    int count = 0;
    for (int k = 0; k < a.columns; ++k) {
      used[count] = k;
      count += x[k] <= pivot;
    }
    lower(to, x, b, used.data(), count);
    const double highest = reduced(to, static_cast<std::size_t>(b.columns), -kInfinity, larger);
    count = 0;
    for (int k = 0; k < a.columns; ++k) {
      used[count] = k;
      count += x[k] > pivot && x[k] + least[k] < highest;
    }
    lower(to, x, b, used.data(), count);
  }
  return result;
}

void row_minima(const CostMatrix& matrix, std::vector<double>& result) {
  result.resize(matrix.rows);
  for (int i = 0; i < matrix.rows; ++i)
    result[i] = reduced(matrix.row(i), static_cast<std::size_t>(matrix.columns), kInfinity, smaller);
}

void column_minima(const CostMatrix& matrix, std::vector<double>& result) {
  result.assign(matrix.columns, kInfinity);
  double* __restrict to = result.data();
  for (int i = 0; i < matrix.rows; ++i) {
    const double* __restrict from = matrix.row(i);
    for (int j = 0; j < matrix.columns; ++j) to[j] = smaller(from[j], to[j]);
  }
}

std::vector<double> row_minima(const CostMatrix& matrix) {
  std::vector<double> result;
  row_minima(matrix, result);
  return result;
}

std::vector<double> column_minima(const CostMatrix& matrix) {
  std::vector<double> result;
  column_minima(matrix, result);
  return result;
}

bool is_within(const CostMatrix& matrix, double limit) noexcept {
  const double* cost = matrix.data();
  const std::size_t count = matrix.size();
  int outside = 0;
  for (std::size_t j = 0; j < count; ++j)
    outside |=
        static_cast<int>(!(cost[j] >= -limit)) | (static_cast<int>(cost[j] > limit) & static_cast<int>(cost[j] < kInfinity));
  return outside == 0;
}

double largest_finite(const CostMatrix& matrix) noexcept {
  return reduced(matrix.data(), matrix.size(), 0.0, [](double cost, double largest) {
    const double size = cost < 0 ? -cost : cost;
    return size < kInfinity ? larger(size, largest) : largest;
  });
}

bool is_separable(const CostMatrix& matrix) noexcept {
  constexpr double kRounding = 8 * std::numeric_limits<double>::epsilon();
  const double *first = matrix.row(0), origin = first[0];
  for (int i = 1; i < matrix.rows; ++i) {
    const double* cost = matrix.row(i);
    const double rise = cost[0] - origin;
    for (int j = 1; j < matrix.columns; ++j) {
      const double sum = first[j] + rise;
      const double scale = std::abs(cost[j]) + std::abs(first[j]) + std::abs(cost[0]) + std::abs(origin);
      if (!(std::abs(cost[j] - sum) <= kRounding * scale) || scale == kInfinity) return false;
    }
  }
  return std::isfinite(origin);
}

void add_to(CostMatrix& matrix, const CostMatrix& added) {
  double* __restrict to = matrix.mutable_row(0);
  const double* __restrict from = added.data();
  const std::size_t count = matrix.size();
  for (std::size_t k = 0; k < count; ++k) to[k] += from[k];
}

void add_to_rows(CostMatrix& matrix, const double* costs) {
  for (int i = 0; i < matrix.rows; ++i) {
    double* to = matrix.mutable_row(i);
    const double cost = costs[i];
    for (int j = 0; j < matrix.columns; ++j) to[j] += cost;
  }
}

void add_to_columns(CostMatrix& matrix, const double* costs) {
  const double* __restrict from = costs;
  for (int i = 0; i < matrix.rows; ++i) {
    double* __restrict to = matrix.mutable_row(i);
    for (int j = 0; j < matrix.columns; ++j) to[j] += from[j];
  }
}

}  // namespace walle::pbqp
