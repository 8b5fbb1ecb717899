// Linear: matrix products by weights that lie in the order of the tile kernel, with several algorithms (§4.1).
#pragma once
#include "atomic/algorithm.h"

namespace walle {

// out[rows, columns] = a[rows, depth] @ w, with its epilogue.
struct LinearArgs {
  std::int64_t rows = 0, depth = 0, columns = 0;
  const float* a = nullptr;
  std::int64_t a_row = 0;    // elements of a row are neighbours
  const float* w = nullptr;  // packed by pack_linear
  float* out = nullptr;
  std::int64_t out_row = 0;
  EpilogueOperands operands;
  bool pairs = false;  // elements of a and w are pairs of bfloat16, and depth counts these
};
void run_linear(Team& team, const LinearArgs& args, const EpilogueKernel& epilogue, const Table& table) noexcept;

// Packs weights of any strides, [depth, columns], into `packed_linear_bytes` of memory.
void pack_linear(const float* w, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns, const Table& table,
                 float* packed) noexcept;
std::size_t packed_linear_bytes(std::int64_t depth, std::int64_t columns, const Table& table) noexcept;

// A matrix product by weights [depth, columns].
struct LinearProblem {
  std::int64_t rows = 0, depth = 0, columns = 0;
  const Table* table = nullptr;
  bool constant_weights = true;  // the plan packs them once
};
// Of a result and the weights.
LinearProblem linear_problem(const Dims& result, const Dims& w, const Table& table, bool constant_weights);

// The order of packed weights depends on depth, columns, instruction set and parameter alone.
using LinearAlgorithm = Algorithm<LinearProblem>;
using LinearChoice = Choice<LinearProblem>;

Algorithms<LinearProblem> linear_algorithms() noexcept;

// Return how many elements of the summed-over axis one panel of packed weights has.
std::int64_t linear_chunk(std::int64_t depth, const Table& table);

}  // namespace walle
