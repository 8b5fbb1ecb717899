// Renames: the elements keep their order, only the shape changes. Merging removes them.
#include <algorithm>

#include "geometry/transform/transform.h"

namespace walle {

namespace {

std::vector<Movement> renamed(const Operand& operand, Dims shape) {
  const std::int64_t count = element_count(operand.shape);
  const std::int64_t one = 1;
  Movement result{operand.dtype, std::move(shape), {}, {}};
  result.regions.push_back(Region::make(0, {&count, 1}, {&one, 1}, 0, {&one, 1}, 0, count, count));
  return {std::move(result)};
}

}  // namespace

// Reinterpret the bits as another dtype of the same size.
std::vector<Movement> make_bit_cast(std::span<const Operand> operands, const Attributes& attributes, int) {
  auto result = renamed(operands[0], operands[0].shape);
  const DType from = operands[0].dtype, to = target_dtype(attributes);
  if (item_size(from) != item_size(to) || is_packed(from) != is_packed(to))
    throw Error(ErrorKind::dtype, "the bits of " + std::string(dtype_name(from)) + " as " + std::string(dtype_name(to)) +
                                      ", which has another size");
  if (to == DType::b8 && from != to)
    throw Error(ErrorKind::unsupported, "bits cannot become bool, whose bytes are 0 and 1 only; use Cast");
  result[0].dtype = to;
  return result;
}

std::vector<Movement> make_identity(std::span<const Operand> operands, const Attributes&, int) {
  return renamed(operands[0], operands[0].shape);
}

// A dimension of 0 copies the input's (unless allowzero); one of -1 is inferred.
std::vector<Movement> make_reshape(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims asked = required_numbers(operands, 1, attributes, "shape");
  const Dims& from = operands[0].shape;
  const bool keep_zero = attributes.get_int("allowzero", 0) != 0;
  Dims shape = asked;
  std::size_t open = shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !keep_zero && i < from.size()) shape[i] = from[i];
    if (shape[i] == -1) {
      if (open != shape.size()) throw Error(ErrorKind::shape, "Reshape to " + to_string(asked) + " has more than one -1");
      open = i;
    } else if (shape[i] < 0) {
      throw Error(ErrorKind::shape, "Reshape to " + to_string(asked) + " has a negative dimension");
    }
  }
  const std::int64_t count = element_count(from);
  if (open != shape.size()) {
    shape[open] = 1;
    const std::int64_t rest = element_count(shape);
    shape[open] = rest == 0 ? 0 : count / rest;
  }
  if (element_count(shape) != count)
    throw Error(ErrorKind::shape,
                "cannot reshape " + to_string(from) + " to " + to_string(asked) + ": the element counts differ");
  return renamed(operands[0], std::move(shape));
}

std::vector<Movement> make_flatten(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::int64_t axis = attributes.get_int("axis", 1);
  const std::size_t cut = axis == static_cast<std::int64_t>(from.size()) ? from.size() : normal_axis(axis, from.size());
  const auto middle = from.begin() + static_cast<std::ptrdiff_t>(cut);
  return renamed(operands[0], {element_count(Dims(from.begin(), middle)), element_count(Dims(middle, from.end()))});
}

std::vector<Movement> make_squeeze(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const auto axes = whole_numbers(operands, 1, attributes, "axes");
  std::vector<bool> drop(from.size(), false);
  for (std::size_t i = 0; i < from.size() && !axes; ++i) drop[i] = from[i] == 1;
  for (const std::int64_t axis : axes.value_or(Dims{})) {
    const std::size_t at = normal_axis(axis, from.size());
    if (from[at] != 1)
      throw Error(ErrorKind::shape, "Squeeze of axis " + std::to_string(axis) + " of " + to_string(from) + ", which is not 1");
    drop[at] = true;
  }
  Dims shape;
  for (std::size_t i = 0; i < from.size(); ++i)
    if (!drop[i]) shape.push_back(from[i]);
  return renamed(operands[0], std::move(shape));
}

std::vector<Movement> make_unsqueeze(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims axes = required_numbers(operands, 1, attributes, "axes");
  Dims shape(from.size() + axes.size(), -1);
  for (const std::int64_t axis : axes) {
    std::int64_t& dim = shape[normal_axis(axis, shape.size())];
    if (dim == 1) throw Error(ErrorKind::shape, "Unsqueeze names axis " + std::to_string(axis) + " twice");
    dim = 1;
  }
  auto next = from.begin();
  for (std::int64_t& dim : shape)
    if (dim == -1) dim = *next++;
  return renamed(operands[0], std::move(shape));
}

}  // namespace walle
