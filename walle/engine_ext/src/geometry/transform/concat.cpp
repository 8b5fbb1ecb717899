#include "geometry/transform/transform.h"

namespace walle {

namespace {

// Concatenate all operands, reshaped to their entries of `shapes`, along `axis`.
std::vector<Movement> joined(std::span<const Operand> operands, std::size_t axis, const std::vector<Dims>& shapes,
                             const char* op) {
  Movement result{operands[0].dtype, shapes[0], {}, {}};
  result.shape[axis] = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Dims rest = shapes[i];
    if (rest.size() == result.shape.size()) rest[axis] = shapes[0][axis];
    if (rest != shapes[0])
      throw Error(ErrorKind::shape, std::string(op) + " of shapes " + to_string(operands[0].shape) + " and " +
                                        to_string(operands[i].shape) + " along axis " + std::to_string(axis));
    if (operands[i].dtype != result.dtype)
      throw Error(ErrorKind::dtype, std::string(op) + " of " + std::string(dtype_name(result.dtype)) + " and " +
                                        std::string(dtype_name(operands[i].dtype)) + "; cast one of them");
    if (__builtin_add_overflow(result.shape[axis], shapes[i][axis], &result.shape[axis]))
      throw Error(ErrorKind::shape, std::string(op) + ": the joined axis leaves 63 bits");
  }
  element_count(result.shape);
  const Dims dst_stride = contiguous_strides(result.shape);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (element_count(shapes[i]) > 0)
      result.regions.push_back(region_of(static_cast<int>(i), shapes[i], contiguous_strides(shapes[i]), 0, dst_stride,
                                         at * dst_stride[axis], shapes[i], result.shape));
    at += shapes[i][axis];
  }
  return {std::move(result)};
}

}  // namespace

std::vector<Movement> make_concat(std::span<const Operand> operands, const Attributes& attributes, int) {
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), operands[0].shape.size());
  std::vector<Dims> shapes;
  for (const Operand& operand : operands) shapes.push_back(operand.shape);
  return joined(operands, axis, shapes, "Concat");
}

// Concatenate along a new axis (NumPy's stack).
std::vector<Movement> make_stack(std::span<const Operand> operands, const Attributes& attributes, int) {
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), operands[0].shape.size() + 1);
  std::vector<Dims> shapes;
  for (const Operand& operand : operands) {
    if (operand.shape.size() != operands[0].shape.size())
      throw Error(ErrorKind::shape, "Stack of shapes " + to_string(operands[0].shape) + " and " + to_string(operand.shape));
    shapes.push_back(operand.shape);
    shapes.back().insert(shapes.back().begin() + static_cast<std::ptrdiff_t>(axis), 1);
  }
  return joined(operands, axis, shapes, "Stack");
}

// ai.onnx.ml's FeatureVectorizer: concatenate the features of each row to one matrix; an operand with one dimension is one row.
// `inputdimensions` repeats the number of features of each operand.
std::vector<Movement> make_feature_vectorizer(std::span<const Operand> operands, const Attributes& attributes, int) {
  std::vector<Dims> shapes;
  for (const Operand& operand : operands) {
    const Dims& own = operand.shape;
    if (operand.absent || own.empty() || own.size() > 2)
      throw Error(ErrorKind::shape, "FeatureVectorizer of " + to_string(own) + "; one or two dimensions are needed");
    shapes.push_back(own.size() == 1 ? Dims{1, own[0]} : own);
  }
  if (const auto said = attributes.get_ints("inputdimensions")) {
    Dims found;
    for (const Dims& shape : shapes) found.push_back(shape[1]);
    if (*said != found)
      throw Error(ErrorKind::shape,
                  "FeatureVectorizer: inputdimensions is " + to_string(*said) + ", the inputs have " + to_string(found));
  }
  return joined(operands, 1, shapes, "FeatureVectorizer");
}

}  // namespace walle
