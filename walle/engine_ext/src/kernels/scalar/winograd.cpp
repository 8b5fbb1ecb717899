// Winograd's transforms in plain C++ (see WinogradArgs): the matrices of winograd.h applied as matrices.
#include "kernels/scalar/set.h"

namespace walle::scalar {

namespace {

constexpr std::int64_t kPack = 4;

float clamp(float x, const Finish& finish) noexcept { return x < finish.low ? finish.low : x > finish.high ? finish.high : x; }

template <int kForm, bool kSquare>
void input(const WinogradArgs& args) noexcept {
  constexpr WinogradForm form = kWinogradForms[kForm];
  constexpr WinogradMatrices by = winograd_matrices(form);
  constexpr int size = form.size(), rows = kSquare ? size : 1;
  for (std::int64_t i = 0; i < args.count; ++i)
    for (std::int64_t lane = 0; lane < kPack; ++lane) {
      float half[rows][size] = {};
      for (std::int64_t r = args.row_first; r < args.row_last; ++r)
        for (std::int64_t c = args.column_first; c < args.column_last; ++c) {
          const float x = args.in[i * args.tile + r * args.row + c * args.column + lane];
          for (int to = 0; to < rows; ++to) half[to][c] += (kSquare ? static_cast<float>(by.input[to][r]) : 1.0f) * x;
        }
      for (int r = 0; r < rows; ++r)
        for (int to = 0; to < size; ++to) {
          float sum = 0;
          for (int c = 0; c < size; ++c) sum += static_cast<float>(by.input[to][c]) * half[r][c];
          args.out[i * kPack + (r * size + to) * args.position + lane] = sum;
        }
    }
}

template <int kForm, bool kSquare>
void output(const WinogradArgs& args) noexcept {
  constexpr WinogradForm form = kWinogradForms[kForm];
  constexpr WinogradMatrices by = winograd_matrices(form);
  constexpr int size = form.size(), rows = kSquare ? size : 1;
  for (std::int64_t i = 0; i < args.count; ++i)
    for (std::int64_t lane = 0; lane < kPack; ++lane)
      for (std::int64_t row = 0; row < args.row_last; ++row) {
        float half[size] = {};
        for (int r = 0; r < rows; ++r)
          for (int c = 0; c < size; ++c)
            half[c] += (kSquare ? static_cast<float>(by.output[row][r]) : 1.0f) *
                       args.in[i * kPack + (r * size + c) * args.position + lane];
        for (std::int64_t column = 0; column < args.column_last; ++column) {
          float sum = 0;
          for (int c = 0; c < size; ++c) sum += static_cast<float>(by.output[column][c]) * half[c];
          const std::int64_t at = i * args.tile + row * args.row + column * args.column + lane;
          if (args.finish.bias != nullptr) sum += args.finish.bias[lane];
          if (args.finish.residual != nullptr) sum += args.finish.residual[at];
          args.out[at] = clamp(sum, args.finish);
        }
      }
}

template <int kForm>
void fill_from(Table& table) noexcept {
  table.winograd[kForm][0] = {&input<kForm, false>, &output<kForm, false>};
  table.winograd[kForm][1] = {&input<kForm, true>, &output<kForm, true>};
  if constexpr (kForm + 1 < kWinogradFormCount) fill_from<kForm + 1>(table);
}

}  // namespace

void fill_winograd(Table& table) noexcept { fill_from<0>(table); }

}  // namespace walle::scalar
