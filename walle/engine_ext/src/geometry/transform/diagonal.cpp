// Diagonals: Diagonal extracts one, Diag makes a matrix with one, EyeLike a matrix with ones on it.
#include <algorithm>
#include <cstring>

#include "core/small_float.h"
#include "geometry/transform/transform.h"

namespace walle {

namespace {

// Diagonal k of a matrix: its first element and its length.
struct Diagonal {
  std::int64_t row, column, length;

  static Diagonal of(std::int64_t rows, std::int64_t columns, std::int64_t k) {
    k = std::clamp(k, -rows, columns);
    const std::int64_t row = std::max<std::int64_t>(-k, 0), column = std::max<std::int64_t>(k, 0);
    return {row, column, std::max<std::int64_t>(std::min(rows - row, columns - column), 0)};
  }
};

// A matrix with elements first, first + step, ... of `source` on the diagonal and element 0 of the fill elsewhere: between two
// elements of the diagonal there are as many others as there are columns.
void add_matrix(Movement& result, int source, std::int64_t first, std::int64_t step, const Dims& from, const Diagonal& diagonal) {
  const Dims& to = result.shape;
  const std::int64_t columns = to[1], total = element_count(to), start = diagonal.row * columns + diagonal.column;
  const auto add_fill = [&](const Dims& size, const Dims& stride, std::int64_t offset) {
    if (element_count(size) > 0)
      result.regions.push_back(
          region_of(Movement::kFill, size, Dims(size.size(), 0), 0, stride, offset, result.fill.shape(), to));
  };
  if (diagonal.length == 0) {
    add_fill({total}, {1}, 0);
    return;
  }
  const std::int64_t end = start + (diagonal.length - 1) * (columns + 1) + 1;
  result.regions.push_back(region_of(source, {diagonal.length}, {step}, first, {columns + 1}, start, from, to));
  add_fill({start}, {1}, 0);
  add_fill({diagonal.length - 1, columns}, {columns + 1, 1}, start + 1);
  add_fill({total - end}, {1}, end);
}

// 0 and 1.
Tensor zero_and_one(DType dtype) {
  Tensor pair = Tensor::empty(dtype, {2});
  std::memset(pair.raw(), 0, 2 * item_size(dtype));
  switch (dtype) {
    case DType::f32: pair.data<float>()[1] = 1; break;
    case DType::f64: pair.data<double>()[1] = 1; break;
    case DType::f16: pair.data<Half>()[1] = Half(1.0f); break;
    case DType::bf16: pair.data<BFloat>()[1] = BFloat(1.0f); break;
    default:
      if (!is_integer(dtype) && dtype != DType::b8)
        throw Error(ErrorKind::dtype, "no matrix of zeros and ones is made of " + std::string(dtype_name(dtype)));
      pair.raw()[item_size(dtype)] = std::byte{1};  // little-endian
  }
  return pair;
}

}  // namespace

// Extract diagonal `offset` over axes `axis1` and `axis2` (default 0 and 1), as a last axis.
std::vector<Movement> make_diagonal(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t first = normal_axis(attributes.get_int("axis1", 0), from.size()),
                    second = normal_axis(attributes.get_int("axis2", 1), from.size());
  if (first == second) throw Error(ErrorKind::shape, "Diagonal needs two axes");
  const Diagonal diagonal = Diagonal::of(from[first], from[second], attributes.get_int("offset", 0));
  const Dims strides = contiguous_strides(from);
  Movement result{operands[0].dtype, {}, {}, {}};
  Dims src;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (i == first || i == second) continue;
    result.shape.push_back(from[i]);
    src.push_back(strides[i]);
  }
  result.shape.push_back(diagonal.length);
  src.push_back(strides[first] + strides[second]);
  if (element_count(result.shape) > 0)
    result.regions.push_back(region_of(0, result.shape, src, diagonal.row * strides[first] + diagonal.column * strides[second],
                                       contiguous_strides(result.shape), 0, from, result.shape));
  return {std::move(result)};
}

// Make the square matrix with the input (one dimension) on diagonal `k`, zeros elsewhere.
std::vector<Movement> make_diag(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  if (from.size() != 1) throw Error(ErrorKind::shape, "Diag of " + to_string(from) + "; one dimension is needed");
  const std::int64_t k = attributes.get_int("k", 0);
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  if (k < -kLimit || k > kLimit || from[0] > kLimit)
    throw Error(ErrorKind::shape, "Diag of " + to_string(from) + " with k = " + std::to_string(k) + " is too large");
  const std::int64_t side = from[0] + std::abs(k);
  Movement result{operands[0].dtype, {side, side}, {}, zero_fill(operands[0].dtype)};
  add_matrix(result, 0, 0, 1, from, Diagonal::of(side, side, k));
  return {std::move(result)};
}

// ONNX EyeLike: ones on diagonal `k` of a matrix of the input's shape, zeros elsewhere, in the input's dtype or in `dtype`.
std::vector<Movement> make_eye_like(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  if (from.size() != 2) throw Error(ErrorKind::shape, "EyeLike of " + to_string(from) + "; two dimensions are needed");
  const std::int64_t number = attributes.get_int("dtype", 0);
  const DType dtype = number == 0 ? operands[0].dtype : target_dtype({{"to", number}});
  Movement result{dtype, from, {}, zero_and_one(dtype)};
  add_matrix(result, Movement::kFill, 1, 0, {2}, Diagonal::of(from[0], from[1], attributes.get_int("k", 0)));
  return {std::move(result)};
}

}  // namespace walle
