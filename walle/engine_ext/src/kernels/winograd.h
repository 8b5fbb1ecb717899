// Winograd's minimal filtering F(unit, taps): `unit` neighbouring outputs of a correlation with `taps` weights from no more than
// size = unit + taps - 1 products, y = output ((weights g) * (input d)), by interpolation at +-1, +-2, +-1/2, infinity and, where
// the size is even, 0 (Toom and Cook; Lavin and Gray, arXiv:1509.09308). In two dimensions each matrix is applied along both
// axes.
#pragma once

namespace walle {

struct WinogradForm {
  int unit, taps;
  constexpr int size() const noexcept { return unit + taps - 1; }
  constexpr int zeros() const noexcept { return size() % 2 == 0 ? 1 : 0; }  // 1 if 0 is a point
  constexpr int pairs() const noexcept { return (size() - 1) / 2; }         // pairs of a point and its negative
};
inline constexpr WinogradForm kWinogradForms[] = {{2, 3}, {4, 3}, {5, 3}, {6, 3}, {2, 5}, {4, 5}};
inline constexpr int kWinogradFormCount = 6;

inline constexpr int kWinogradMaxSize = 8, kWinogradMaxUnit = 6, kWinogradMaxTaps = 5;
// The finite points, as many as the size requires, each used with its negative.
inline constexpr double kWinogradPoints[] = {1.0, 2.0, 0.5};

// Rows and columns are in the order: 0 if it is a point, then each point and its negative, then infinity. All fractions are in
// `weights`.
struct WinogradMatrices {
  double input[kWinogradMaxSize][kWinogradMaxSize] = {};
  double weights[kWinogradMaxSize][kWinogradMaxTaps] = {};
  double output[kWinogradMaxUnit][kWinogradMaxSize] = {};
};
constexpr WinogradMatrices winograd_matrices(WinogradForm form) noexcept {
  const int size = form.size(), finite = size - 1, zeros = form.zeros();
  double points[kWinogradMaxSize] = {};
  for (int i = zeros; i < finite; ++i) points[i] = (i - zeros) % 2 == 0 ? kWinogradPoints[i / 2] : -points[i - 1];
  WinogradMatrices by;
  for (int row = 0; row < size; ++row) {
    // The polynomial with a root at every finite point except this one; for infinity, at every finite point.
    double product[kWinogradMaxSize] = {1.0};
    double divisor = 1.0;
    int degree = 0;
    for (int other = 0; other < finite; ++other) {
      if (other == row) continue;
      for (int i = ++degree; i >= 0; --i) product[i] = (i > 0 ? product[i - 1] : 0.0) - points[other] * product[i];
      if (row < finite) divisor *= points[row] - points[other];
    }
    for (int i = 0; i < size; ++i) by.input[row][i] = product[i];
    if (row == finite) {
      by.weights[row][form.taps - 1] = by.output[form.unit - 1][row] = 1.0;
      continue;
    }
    double power = 1.0;
    for (int i = 0; i < size; ++i, power *= points[row]) {
      if (i < form.taps) by.weights[row][i] = power / divisor;
      if (i < form.unit) by.output[i][row] = power;
    }
  }
  return by;
}

}  // namespace walle
