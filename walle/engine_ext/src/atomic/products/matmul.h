// Steps of MatMul: products of matrices that are not constant.
#pragma once
#include <vector>

#include "atomic/atomic.h"

namespace walle {

// Matrices with broadcast batches. An epilogue, of a bias in operand kBias and of bounds, needs two matrices of float32, more
// than one column of the second, and a kernel that finishes (Gemm::finishes).
std::unique_ptr<HostStep> make_matmul_step(std::span<const Layout> inputs, const TensorType& result, const Table& table,
                                           const Epilogue& epilogue = {});

// An operand whose columns lie in several matrices, one beside the other.
struct JoinedOperand {
  static constexpr std::size_t kMostParts = 16;
  static constexpr std::int64_t kLeastRows = 5;  // a product of fewer reads a copy of the operand where it lies
  struct Part {
    std::int64_t columns, row, offset;  // distance of rows, and place of the first element, in elements
  };
  std::vector<Part> parts;
  bool is_second = false;            // the second operand; else the first
  std::int64_t row = 0, column = 0;  // distances of rows and columns of the other operand
};

// (m, k) @ (k, n) of float32, one of them joined. Operands of the step are the parts, the other matrix, and the bias.
struct JoinedProduct {
  std::int64_t m, n, k;
  JoinedOperand joined;
  bool has_bias;
  float low, high;
};
std::unique_ptr<HostStep> make_joined_product_step(JoinedProduct product, const Table& table);

}  // namespace walle
