// Step of a group of elementwise operators: it computes all of them for one block of elements after the other, so that the values
// between them stay in the first-level cache.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "atomic/atomic.h"

namespace walle {

// An operand of a group as the result's elements read it.
struct GroupOperand {
  DType dtype;
  Dims strides;             // along the result's axes, in elements; 0: broadcast
  std::int64_t offset = 0;  // place of the first element, in elements
};

// One operator of a group: a kernel of the table, upon operands of the group and results of stages before it.
struct GroupStage {
  struct BoundMap {
    MapFn kernel;
    float a, b;
  };
  std::variant<UnaryFn, BinaryFn, SelectFn, BoundMap> kernel;
  std::vector<int> operands;  // operands of the group first, then stages in order
  DType dtype;                // type of its result
};

inline constexpr std::size_t kMostGroupOperands = 12, kMostGroupStages = 32;

// Return the step of a group, whose last stage gives its result. There are at most kMostGroupOperands operands and
// kMostGroupStages stages; `algorithm` is its name in plans. The result equals that of one step for each operator to the bit.
std::unique_ptr<HostStep> make_elementwise_group(std::string algorithm, std::span<const GroupOperand> operands,
                                                 std::span<const GroupStage> stages, const TensorType& result);

}  // namespace walle
