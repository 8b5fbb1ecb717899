// Matrix products by weights that lie in the order of the tile kernel: what Linear, and MatMul after packing, run.
#pragma once
#include "atomic/products/packed_convolution.h"

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
  const Activation* activation = nullptr;  // after the bounds; takes the residual where that comes last
  const float* slope = nullptr;            // of its columns
  bool pairs = false;                      // elements of a and w are pairs of bfloat16, and depth counts these
};
void run_linear(Team& team, const LinearArgs& args, const Table& table) noexcept;

// The weights of any strides, [depth, columns], into `packed_linear_bytes` of memory.
void pack_linear(const float* w, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns, const Table& table,
                 float* packed) noexcept;
std::size_t packed_linear_bytes(std::int64_t depth, std::int64_t columns, const Table& table) noexcept;

// A matrix product by constant weights [depth, columns], as the search weighs it.
struct LinearShape {
  std::int64_t rows = 0, depth = 0, columns = 0;
  const Table* table = nullptr;
};
// One way to compute it. `parameter` is its own: how deep Strassen's recursion goes, say.
struct LinearAlgorithm {
  std::string_view name;
  // The parameters that may be tried for such a product; none: it does not apply.
  std::vector<std::int64_t> (*parameters)(const LinearShape& shape);
  Work (*work)(const LinearShape& shape, std::int64_t parameter);
  // `w` is row-major. What the step will read as its operand 1; hangs on depth, columns, backend and parameter alone.
  Tensor (*pack)(const LinearShape& shape, std::int64_t parameter, const float* w);
  std::unique_ptr<Step> (*make)(const StepRequest& request, std::int64_t parameter);
  // Taken where it is asked for by name alone: an element's error is bounded by the whole of x, not by its own row.
  bool by_name = false;
};
// In the order in which a tie is decided.
std::span<const LinearAlgorithm* const> linear_algorithms() noexcept;

extern const LinearAlgorithm kLinearPacked;    // the tile kernel
extern const LinearAlgorithm kLinearGemv;      // the same for few rows, by more sums than the tile has elements
extern const LinearAlgorithm kLinearPairs;     // x and weights rounded to bfloat16, where the backend has it
extern const LinearAlgorithm kLinearStrassen;  // strassen.cpp

// As many elements of the summed-over axis as one panel of packed weights has.
std::int64_t linear_chunk(std::int64_t depth, const Table& table);

}  // namespace walle
