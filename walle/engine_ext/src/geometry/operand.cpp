#include "geometry/operand.h"

#include <algorithm>
#include <cstring>

#include "core/stop.h"

namespace walle {

std::size_t normal_axis(std::int64_t axis, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank)
    throw Error(ErrorKind::shape,
                "axis " + std::to_string(axis) + " is out of range for " + std::to_string(rank) + " dimensions");
  return static_cast<std::size_t>(axis < 0 ? axis + signed_rank : axis);
}

std::optional<Dims> whole_numbers(std::span<const Operand> operands, std::size_t index, const Attributes& attributes,
                                  std::string_view name) {
  if (index >= operands.size() || operands[index].absent) return attributes.get_ints(name);
  const Tensor* tensor = operands[index].constant;
  if (tensor == nullptr) throw ValueNeeded(index, "'" + std::string(name) + "'");
  if (tensor->ndim() > 1)
    throw Error(ErrorKind::shape, "'" + std::string(name) + "' has shape " + to_string(tensor->shape()) + ", not one dimension");
  const std::int64_t stride = tensor->ndim() == 1 ? tensor->strides()[0] : 0;
  const bool is_wide = tensor->dtype() == DType::i64;
  if (tensor->size() > 0 && !is_wide && tensor->dtype() != DType::i32)
    throw Error(ErrorKind::dtype,
                "'" + std::string(name) + "' has dtype " + std::string(dtype_name(tensor->dtype())) + ", not int64 or int32");
  Dims numbers;
  numbers.reserve(static_cast<std::size_t>(tensor->size()));
  run_stoppable(tensor->size(), 2, [&](std::int64_t first, std::int64_t last) {
    numbers.resize(static_cast<std::size_t>(last));
    std::int64_t* to = numbers.data();
    const auto* wide = tensor->data<std::int64_t>();
    const auto* narrow = tensor->data<std::int32_t>();
    for (std::int64_t i = first; i < last && is_wide; ++i) std::memcpy(to + i, wide + i * stride, sizeof(std::int64_t));
    for (std::int64_t i = first; i < last && !is_wide; ++i) to[i] = narrow[i * stride];
  });
  return numbers;
}

Dims required_numbers(std::span<const Operand> operands, std::size_t index, const Attributes& attributes, std::string_view name) {
  if (auto numbers = whole_numbers(operands, index, attributes, name)) return *std::move(numbers);
  throw Error(ErrorKind::model, "'" + std::string(name) + "' is missing");
}

Dims broadcast_shape(const Dims& a, const Dims& b) {
  Dims result(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::int64_t left = i < a.size() ? a[a.size() - 1 - i] : 1, right = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (left != right && left != 1 && right != 1)
      throw Error(ErrorKind::shape, "shapes " + to_string(a) + " and " + to_string(b) + " do not broadcast together");
    result[result.size() - 1 - i] = left == 1 ? right : left;
  }
  return result;
}

Dims broadcast_strides(const Dims& shape, const Dims& strides, const Dims& to) {
  Dims result(to.size(), 0);
  bool fits = shape.size() <= to.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    const std::size_t from_axis = shape.size() - 1 - i, to_axis = to.size() - 1 - i;
    if (shape[from_axis] == to[to_axis])
      result[to_axis] = shape[from_axis] == 1 ? 0 : strides[from_axis];
    else
      fits = shape[from_axis] == 1;
  }
  if (!fits) throw Error(ErrorKind::shape, "shape " + to_string(shape) + " does not broadcast to " + to_string(to));
  return result;
}

}  // namespace walle
