#include "bindings/fast_path.h"

#include <bit>
#include <utility>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "core/loop_nest.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

// Elements up to which an elementwise kernel is called directly: tens of microseconds, for which the GIL is not released either.
constexpr std::int64_t kFastElementwise = 1 << 14;

bool is_small(const Tensor& x) { return x.size() <= kFastElementwise && x.contiguous(); }

std::size_t index_of(DType dtype) { return static_cast<std::size_t>(compute_index(dtype)); }

// Returns the operand's stride over the flat result: 1 where it has the result's shape and is dense, 0 for a single number;
// nothing where a loop nest is needed.
std::optional<std::int64_t> flat_stride(const Tensor& x, const Dims& shape) {
  if (x.shape() == shape && x.contiguous()) return 1;
  return x.ndim() == 0 ? std::optional<std::int64_t>(0) : std::nullopt;
}

}  // namespace

std::optional<Tensor> fast_unary(const OpDef& op, const Tensor& x) {
  const int type = compute_index(x.dtype());
  if (type < 0 || x.dtype() == DType::b8 || !is_small(x))
    return std::nullopt;  // operators on bools have other names (logical_name)
  const bool is_test = op.is(Family::test), is_part = op.is(Family::part);
  if (!is_test && !is_part && !op.is(Family::unary)) return std::nullopt;
  const std::uint8_t code = op.as<ListedKernel>()->code;
  const UnaryFn kernel = is_test   ? kernels().test[code][type]
                         : is_part ? kernels().part[code][type]
                                   : kernels().unary[code][type];
  if (kernel == nullptr) return std::nullopt;
  Tensor result = Tensor::empty(is_test ? DType::b8 : is_part ? part_dtype(x.dtype()) : x.dtype(), x.shape());
  kernel(x.raw(), 1, result.raw(), x.size());
  return result;
}

std::optional<Tensor> fast_binary(const OpDef& op, py::handle a, py::handle b) {
  const bool is_comparison = op.is(Family::compare);
  if (!is_comparison && !op.is(Family::binary)) return std::nullopt;
  const Tensor *x = tensor_or_null(a), *y = tensor_or_null(b), *array = x != nullptr ? x : y;
  if (array == nullptr || array->dtype() == DType::b8 || array->size() > kFastElementwise) return std::nullopt;
  const DType dtype = array->dtype();
  const int type = compute_index(dtype);
  if (type < 0 || (op.name == "Div" && floating_dtype(dtype) != dtype)) return std::nullopt;
  const BinaryFn kernel = (is_comparison ? kernels().compare : kernels().binary)[op.as<ListedKernel>()->code][type];
  if (kernel == nullptr) return std::nullopt;
  Tensor number;
  if (x == nullptr || y == nullptr) {
    const py::handle other = x != nullptr ? b : a;
    const bool plain = PyFloat_CheckExact(other.ptr()) || PyLong_CheckExact(other.ptr()) || PyComplex_CheckExact(other.ptr());
    if (!plain || op.name == "Power" || promote_with_number(dtype, natural_dtype(other)) != dtype) return std::nullopt;
    if (is_comparison && !fits(other, dtype)) return std::nullopt;
    number = scalar(other, dtype);
    (x != nullptr ? y : x) = &number;
  }
  if (x->dtype() != y->dtype() || x->size() > kFastElementwise || y->size() > kFastElementwise) return std::nullopt;
  Dims shape = x->shape() == y->shape() || y->ndim() == 0 ? x->shape() : broadcast_shape(x->shape(), y->shape());
  const std::int64_t count = element_count(shape);
  if (count > kFastElementwise) return std::nullopt;
  Tensor result = Tensor::empty(is_comparison ? DType::b8 : dtype, std::move(shape));
  const auto first = flat_stride(*x, result.shape()), second = flat_stride(*y, result.shape());
  if (first && second) {
    kernel(x->raw(), *first, y->raw(), *second, result.raw(), count);
    return result;
  }
  const std::size_t item = item_size(dtype);
  const auto nest = LoopNest<3>::make(result.shape(),
                                      {broadcast_strides(x->shape(), x->strides(), result.shape()),
                                       broadcast_strides(y->shape(), y->strides(), result.shape()), result.strides()},
                                      {item, item, item_size(result.dtype())});
  // Long rows of other strides are gathered by the general path, because vector kernels take dense ones.
  constexpr std::int64_t kLongRow = 256;
  const auto is_dense = [&](std::size_t operand) {
    const std::int64_t stride = nest.row_stride(operand, item);
    return stride == 0 || stride == 1;
  };
  if (nest.row() > kLongRow && (!is_dense(0) || !is_dense(1))) return std::nullopt;
  nest.walk({x->raw(), y->raw(), result.raw()}, 1, [&](const auto& address) {
    kernel(address[0], nest.row_stride(0, item), address[1], nest.row_stride(1, item), address[2], nest.row());
  });
  return result;
}

std::optional<Tensor> fast_where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || condition.size() > kFastPathElements || a.size() > kFastPathElements ||
      b.size() > kFastPathElements)
    return std::nullopt;
  const Tensor& largest = condition.ndim() > 0 ? condition : a.ndim() > 0 ? a : b;
  const auto chosen = flat_stride(condition, largest.shape()), first = flat_stride(a, largest.shape()),
             second = flat_stride(b, largest.shape());
  if (!chosen || !first || !second) return std::nullopt;
  Tensor result = Tensor::empty(a.dtype(), largest.shape());
  const auto log2_size = static_cast<std::size_t>(std::bit_width(item_size(a.dtype())) - 1);
  kernels().select[log2_size](condition.raw(), *chosen, a.raw(), *first, b.raw(), *second, result.raw(), result.size());
  return result;
}

std::optional<Tensor> fast_reduce(const OpDef& op, const Tensor& given, py::handle axis, bool keepdims) {
  const auto* listed = op.as<ListedKernel>();
  if (listed == nullptr || given.size() > kFastPathElements || given.size() == 0 || compute_index(given.dtype()) < 0 ||
      is_half(given.dtype()))
    return std::nullopt;
  const Tensor x = contiguous(given);
  const std::size_t type = index_of(x.dtype()), rank = x.shape().size();
  const bool mean = op.is(Family::mean), returns_index = op.is(Family::arg);
  const Table& table = kernels();
  const ReduceFn kernel = returns_index ? table.arg[listed->code][type]
                          : mean        ? table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][type]
                                        : table.reduce[listed->code][type];
  if (kernel == nullptr) return std::nullopt;
  // The elements as (outer, count, inner); the middle axis is reduced.
  std::int64_t outer = 1, count = x.size(), inner = 1;
  Dims shape;
  if (axis.is_none()) {
    if (keepdims) shape.assign(rank, 1);
  } else {
    if (!PyLong_CheckExact(axis.ptr())) return std::nullopt;
    const std::int64_t given_axis = py::cast<std::int64_t>(axis), ndim = static_cast<std::int64_t>(rank);
    if (given_axis < -ndim || given_axis >= ndim) return std::nullopt;
    const auto reduced = static_cast<std::size_t>(given_axis < 0 ? given_axis + ndim : given_axis);
    shape = x.shape();
    count = shape[reduced];
    for (std::size_t i = 0; i < reduced; ++i) outer *= shape[i];
    for (std::size_t i = reduced + 1; i < rank; ++i) inner *= shape[i];
    if (keepdims)
      shape[reduced] = 1;
    else
      shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(reduced));
  }
  Tensor result = Tensor::empty(returns_index ? DType::i64 : x.dtype(), std::move(shape));
  const auto item = static_cast<std::int64_t>(item_size(x.dtype())), size = static_cast<std::int64_t>(item_size(result.dtype()));
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t j = 0; j < inner; ++j)
      kernel(x.raw() + (i * count * inner + j) * item, inner, count, result.raw() + (i * inner + j) * size);
  if (mean) {
    alignas(8) std::byte divisor[kMaxItemSize];
    table.cast[index_of(DType::i64)][type](&count, 0, divisor, 1);
    table.binary[static_cast<std::size_t>(BinaryOp::Div)][type](result.raw(), 1, divisor, 0, result.raw(), outer * inner);
  }
  return result;
}

std::optional<Tensor> fast_matmul(const Tensor& a, const Tensor& b) {
  const std::size_t left = a.shape().size(), right = b.shape().size();
  const bool stack = left > 2;  // dense matrices one after another are one taller matrix
  if (left < 1 || (stack && (a.size() == 0 || !a.contiguous())) || right < 1 || right > 2 || a.dtype() != b.dtype() ||
      a.dtype() == DType::b8 || is_half(a.dtype()) || compute_index(a.dtype()) < 0)
    return std::nullopt;
  GemmArgs args;
  args.k = a.shape()[left - 1];
  args.m = stack ? a.size() / args.k : left == 2 ? a.shape()[0] : 1;
  args.n = right == 2 ? b.shape()[1] : 1;
  const Gemm& gemm = kernels().gemm[index_of(a.dtype())];
  constexpr std::size_t kScratch = 16384;
  if (gemm.run == nullptr || args.k != b.shape()[0] || args.m * args.k > kFastPathElements ||
      args.k * args.n > kFastPathElements || args.m * args.n > kFastPathElements ||
      gemm.scratch_bytes(args.m, args.n, args.k) > kScratch)
    return std::nullopt;
  Dims shape(a.shape().begin(), a.shape().end() - 1);
  if (right == 2) shape.push_back(args.n);
  Tensor result = Tensor::empty(a.dtype(), std::move(shape));
  args.a = a.raw();
  // In a stack whose matrices have one row, the row stride may hold any value, so it is not read.
  args.a_row = stack ? args.k : left == 2 ? a.strides()[0] : 0;
  args.a_col = stack ? 1 : a.strides()[left - 1];
  args.b = b.raw();
  args.b_row = b.strides()[0];
  args.b_col = right == 2 ? b.strides()[1] : 0;
  if (args.n == 1 && args.m > 1) {  // a column: computed as a row of the transposed product
    std::swap(args.a, args.b);
    std::swap(args.m, args.n);
    std::swap(args.a_row, args.b_col);
    std::swap(args.a_col, args.b_row);
  }
  alignas(64) std::byte scratch[kScratch];
  args.out = result.raw();
  args.out_row = args.n;
  args.scratch = scratch;
  gemm.run(args);
  return result;
}

}  // namespace walle
