// Matrices of costs and the loops over them. Costs are finite or +infinity.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace walle::pbqp {

// The cost of what is forbidden.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Row-major costs: owned, or a view of memory that outlives it, because most matrices of a network are only read and copies of
// them would take most of the solver's time. Small ones are stored inside, because allocations would.
class CostMatrix {
 public:
  CostMatrix() = default;
  CostMatrix(int row_count, int column_count, double value = 0) : rows(row_count), columns(column_count) {
    if (is_small())
      small_.fill(value);
    else
      owned_.assign(size(), value);
  }
  CostMatrix(int row_count, int column_count, std::vector<double> costs)
      : rows(row_count), columns(column_count), owned_(std::move(costs)), is_complete_(owned_.size() == size()) {
    if (!is_small() || !is_complete_) return;
    std::copy(owned_.begin(), owned_.end(), small_.begin());
    owned_.clear();
  }
  static CostMatrix view(int row_count, int column_count, const double* costs) {
    CostMatrix result;
    result.rows = row_count;
    result.columns = column_count;
    if (result.is_small())
      std::copy_n(costs, result.size(), result.small_.begin());
    else
      result.view_ = costs;
    return result;
  }

  std::size_t size() const noexcept { return static_cast<std::size_t>(rows) * columns; }
  bool is_complete() const noexcept { return is_complete_; }
  std::int64_t work() const noexcept { return static_cast<std::int64_t>(size()); }
  const double* data() const noexcept { return is_small() ? small_.data() : view_ != nullptr ? view_ : owned_.data(); }
  const double* row(int i) const noexcept { return data() + static_cast<std::size_t>(i) * columns; }
  double at(int i, int j) const noexcept { return row(i)[j]; }
  // Copies what is a view.
  double* mutable_row(int i) {
    double* first = small_.data();
    if (!is_small()) {
      if (view_ != nullptr) {
        owned_.assign(view_, view_ + size());
        view_ = nullptr;
      }
      first = owned_.data();
    }
    return first + static_cast<std::size_t>(i) * columns;
  }

  int rows = 0, columns = 0;

 private:
  static constexpr std::size_t kSmall = 12;
  bool is_small() const noexcept { return size() <= kSmall; }

  const double* view_ = nullptr;
  std::vector<double> owned_;
  std::array<double, kSmall> small_{};
  bool is_complete_ = true;
};

CostMatrix transposed(const CostMatrix& matrix);
// Returns the rows and columns of the given positions; a view where these are all.
CostMatrix selected(const CostMatrix& matrix, const std::vector<int>& rows, const std::vector<int>& columns);
CostMatrix selected_rows(const CostMatrix& matrix, const std::vector<int>& rows);
CostMatrix selected_columns(const CostMatrix& matrix, const std::vector<int>& columns);
// out[i, j] = min_k a[i, k] + b[k, j].
CostMatrix min_plus(const CostMatrix& a, const CostMatrix& b);

std::vector<double> row_minima(const CostMatrix& matrix);
std::vector<double> column_minima(const CostMatrix& matrix);
// The same, into a vector that keeps its memory.
void row_minima(const CostMatrix& matrix, std::vector<double>& result);
void column_minima(const CostMatrix& matrix, std::vector<double>& result);
// Returns whether each cost is +infinity or at most this large; false for NaN.
bool is_within(const CostMatrix& matrix, double limit) noexcept;
// Returns the largest absolute value of the finite costs, 0 where there are none.
double largest_finite(const CostMatrix& matrix) noexcept;
// Returns whether the matrix is the sum of a row and a column, but for rounding; false where it has infinities.
bool is_separable(const CostMatrix& matrix) noexcept;

// matrix[i, j] += added[i, j].
void add_to(CostMatrix& matrix, const CostMatrix& added);
// matrix[i, j] += costs[i], and costs[j]. The costs are finite.
void add_to_rows(CostMatrix& matrix, const double* costs);
void add_to_columns(CostMatrix& matrix, const double* costs);

}  // namespace walle::pbqp
