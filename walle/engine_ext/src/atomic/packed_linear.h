// Matrix products by weights that lie in the order of the tile kernel: what Linear, and MatMul after packing, run.
#pragma once
#include "atomic/packed_convolution.h"

namespace walle {

// out[rows, columns] = a[rows, depth] @ w + bias + residual, bounded.
struct LinearArgs {
  std::int64_t rows = 0, depth = 0, columns = 0;
  const float* a = nullptr;
  std::int64_t a_row = 0;    // elements of a row are neighbours
  const float* w = nullptr;  // packed by pack_linear
  float* out = nullptr;
  std::int64_t out_row = 0;
  Finish finish;
  bool pairs = false;  // elements of a and w are pairs of bfloat16, and depth counts these
};
void run_linear(Team& team, const LinearArgs& args, const Table& table) noexcept;

// The weights of any strides, [depth, columns], into `packed_linear_bytes` of memory.
void pack_linear(const float* w, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns, const Table& table,
                 float* packed) noexcept;
std::size_t packed_linear_bytes(std::int64_t depth, std::int64_t columns, const Table& table) noexcept;

// Linear whose operand 1 has been packed; the second one takes what pack_linear_pairs made, [pairs, columns, 2] in such an order,
// and rounds x to bfloat16 in every run.
std::unique_ptr<Step> make_packed_linear(const StepRequest& request);
std::unique_ptr<Step> make_packed_linear_pairs(const StepRequest& request);
Tensor pack_linear_pairs(const float* w, std::int64_t depth, std::int64_t columns, const Table& table);

// Q of eq. 3.
Work packed_linear_work(std::int64_t rows, std::int64_t depth, std::int64_t columns, const Table& table, bool pairs) noexcept;

}  // namespace walle
