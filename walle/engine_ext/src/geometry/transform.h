// Transform operators: movements of elements, given as regions for the raster (§4.1). A maker is a pure function of its
// operands' types and shapes (and of the values of small constant operands such as axes), so that it serves shape inference,
// sessions and walle.np alike.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/attributes.h"
#include "core/region.h"

namespace walle {

struct Operand {
  DType dtype = DType::f32;
  Dims shape;
  const Tensor* constant = nullptr;  // its value, where it is known before running
  bool absent = false;               // an optional input that was left out

  static Operand none() { return {DType::f32, {}, nullptr, true}; }
};

// One output: the regions fill every element of it once. Sources are operand numbers, their elements row-major; kFill reads
// `fill`, which has one element or few.
struct Movement {
  static constexpr int kFill = -1;

  DType dtype = DType::f32;
  Dims shape;
  std::vector<Region> regions;
  Tensor fill;
};

// `outputs` is how many the node has. Throws Error (shape, dtype, unsupported) for operands and attributes that do not fit.
using TransformFn = std::vector<Movement> (*)(std::span<const Operand> operands, const Attributes& attributes, int outputs);

// Where regions hang on values that are known only at run time: the movement as operators (those of indexed rasters among them).
class Emitter;
using RunTimeFn = std::vector<int> (*)(Emitter& emitter, std::span<const int> inputs, const Attributes& attributes, int outputs);

struct Transform {
  std::string_view name;
  int min_inputs, max_inputs;
  TransformFn make;
  RunTimeFn at_run_time = nullptr;
};
// All of them, in alphabetical order; each is defined in the geometry/ file of its family.
std::span<const Transform> transforms() noexcept;

// Thrown where an operator's shape or movement hangs on an operand that is no constant. A session then plans with the inputs that
// the operand comes from as constants, or takes the operator's at_run_time form.
class ValueNeeded : public Error {
 public:
  ValueNeeded(std::size_t operand, const std::string& what)
      : Error(ErrorKind::unsupported, what + " must be known before running"), operand_(operand) {}
  std::size_t operand() const noexcept { return operand_; }

 private:
  std::size_t operand_;
};

// What the makers share.

// `axis` counted from the front; throws Error (shape) outside [-rank, rank).
std::size_t normal_axis(std::int64_t axis, std::size_t rank);
// Whole numbers from operand `index` (a constant) or, where that is absent, from the attribute; nothing where neither is there.
std::optional<Dims> whole_numbers(std::span<const Operand> operands, std::size_t index, const Attributes& attributes,
                                  std::string_view name);
Dims required_numbers(std::span<const Operand> operands, std::size_t index, const Attributes& attributes, std::string_view name);
// A region from an operand of shape `from` to an output of shape `to`, all strides and offsets in elements.
Region region_of(int source, const Dims& size, const Dims& src_stride, std::int64_t src_offset, const Dims& dst_stride,
                 std::int64_t dst_offset, const Dims& from, const Dims& to);
// A fill of zeros, of one element.
Tensor zero_fill(DType dtype);
// The common shape by NumPy's rule; throws Error (shape).
Dims broadcast_shape(const Dims& a, const Dims& b);
// The strides that read a tensor of `shape` and `strides` as `to`, which it broadcasts to; throws Error (shape).
Dims broadcast_strides(const Dims& shape, const Dims& strides, const Dims& to);

}  // namespace walle
