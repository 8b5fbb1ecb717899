// Shapes and types of atomic operators. Transform operators infer by making their regions, composites by decomposing.
#include <algorithm>

#include "operators/op.h"

namespace walle {

namespace {

// Own kernels and composites that take complex numbers; the others are written for real ones.
constexpr std::string_view kTakeComplex[] = {"Cast", "CumProd", "CumSum", "Einsum", "IndexedGather", "IndexedScatter"};

std::string types_of(std::span<const Operand> operands) {
  std::string text;
  for (const Operand& operand : operands) text += (text.empty() ? "" : ", ") + std::string(dtype_name(operand.dtype));
  return text;
}

[[noreturn]] void refuse(const OpDef& op, std::span<const Operand> operands) {
  const bool complex = std::any_of(operands.begin(), operands.end(), [](const Operand& one) { return is_complex(one.dtype); });
  const bool orders = op.is(Family::arg) || op.is(Family::compare) || op.name == "Maximum" || op.name == "Minimum" ||
                      op.name == "ReduceMax" || op.name == "ReduceMin";
  throw Error(ErrorKind::dtype, std::string(op.name) + " does not support " + types_of(operands) +
                                    (!complex ? ""
                                     : orders ? "; complex numbers have no order: compare their magnitudes or real parts"
                                              : "; take the real and imaginary parts"));
}

Dims matmul_shape(const Dims& a, const Dims& b) {
  if (a.empty() || b.empty())
    throw Error(ErrorKind::shape, "MatMul of shapes " + to_string(a) + " and " + to_string(b) + "; both need a dimension");
  const std::int64_t inner = b.size() == 1 ? b[0] : b[b.size() - 2];
  if (a.back() != inner)
    throw Error(ErrorKind::shape, "MatMul of shapes " + to_string(a) + " and " + to_string(b) + ": " + std::to_string(a.back()) +
                                      " columns against " + std::to_string(inner) + " rows");
  const auto batch = [](const Dims& dims) {
    return Dims(dims.begin(), dims.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(2, dims.size())));
  };
  Dims shape = broadcast_shape(batch(a), batch(b));
  if (a.size() > 1) shape.push_back(a[a.size() - 2]);
  if (b.size() > 1) shape.push_back(b.back());
  return shape;
}

}  // namespace

void refuse_complex(const OpDef& op, std::span<const Operand> operands) {
  const bool complex = std::any_of(operands.begin(), operands.end(), [](const Operand& one) { return is_complex(one.dtype); });
  if (complex && std::find(std::begin(kTakeComplex), std::end(kTakeComplex), op.name) == std::end(kTakeComplex))
    refuse(op, operands);
}

bool computes(const OpDef& op, DType dtype) noexcept {
  const auto* kernel = op.as<ListedKernel>();
  if (kernel == nullptr) return false;
  // Sums and products of 16-bit floats are computed in float32 as a whole (atomic/conversion.h).
  if (is_half(dtype) && widens(kernel->family)) dtype = DType::f32;
  const int type = compute_index(dtype);
  if (type < 0) return false;
  const Table& table = kernels("scalar");
  const auto at = static_cast<std::size_t>(type);
  switch (kernel->family) {
    case Family::unary: return table.unary[kernel->code][at] != nullptr;
    case Family::test: return table.test[kernel->code][at] != nullptr;
    case Family::part: return table.part[kernel->code][at] != nullptr;
    case Family::binary: return table.binary[kernel->code][at] != nullptr;
    case Family::compare: return table.compare[kernel->code][at] != nullptr;
    case Family::reduce: return table.reduce[kernel->code][at] != nullptr;
    case Family::mean: return is_floating(dtype) || is_complex(dtype) || (is_integer(dtype) && item_size(dtype) >= 4);
    case Family::arg: return table.arg[kernel->code][at] != nullptr;
    case Family::matmul: return table.gemm[at].run != nullptr;
    case Family::select: return false;
  }
  return false;
}

std::vector<std::size_t> reduced_axes(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes) {
  const std::size_t rank = operands[0].shape.size();
  std::vector<std::size_t> axes;
  if (op.is(Family::arg)) {
    axes.push_back(normal_axis(attributes.get_int("axis", 0), rank));
    return axes;
  }
  const auto given = whole_numbers(operands, 1, attributes, "axes");
  if (!given || given->empty()) {
    if (attributes.get_int("noop_with_empty_axes", 0) == 0)
      for (std::size_t i = 0; i < rank; ++i) axes.push_back(i);
    return axes;
  }
  for (const std::int64_t axis : *given) axes.push_back(normal_axis(axis, rank));
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end())
    throw Error(ErrorKind::shape, std::string(op.name) + ": 'axes' is " + to_string(*given) + ", which names an axis twice");
  return axes;
}

TensorType infer_atomic(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes) {
  const Operand& first = operands[0];
  if (first.absent) throw Error(ErrorKind::model, std::string(op.name) + ": input 0 is missing");
  if (const auto* own = op.as<OwnKernel>()) {
    refuse_complex(op, operands);
    return own->infer(operands, attributes);
  }
  const auto* kernel = op.as<ListedKernel>();
  if (kernel == nullptr) throw Error(ErrorKind::unsupported, std::string(op.name) + " is not atomic");
  const Family family = kernel->family;
  switch (family) {
    case Family::unary:
      if (!computes(op, first.dtype)) refuse(op, operands);
      return {first.dtype, first.shape};
    case Family::test:
      if (!computes(op, first.dtype)) refuse(op, operands);
      return {DType::b8, first.shape};
    case Family::part:
      if (!computes(op, first.dtype)) refuse(op, operands);
      return {part_dtype(first.dtype), first.shape};
    case Family::binary:
    case Family::compare:
      if (operands[1].absent || operands[1].dtype != first.dtype || !computes(op, first.dtype)) refuse(op, operands);
      return {family == Family::compare ? DType::b8 : first.dtype, broadcast_shape(first.shape, operands[1].shape)};
    case Family::select:
      if (first.dtype != DType::b8 || operands[1].absent || operands[2].absent || operands[1].dtype != operands[2].dtype)
        refuse(op, operands);
      return {operands[1].dtype, broadcast_shape(first.shape, broadcast_shape(operands[1].shape, operands[2].shape))};
    case Family::reduce:
    case Family::mean:
    case Family::arg: {
      if (!computes(op, first.dtype)) refuse(op, operands.first(1));
      const auto axes = reduced_axes(op, operands, attributes);
      const bool keep = attributes.get_int("keepdims", 1) != 0;
      const bool has_identity =
          family != Family::arg && (family != Family::mean || is_floating(first.dtype) || is_complex(first.dtype));
      TensorType result{family == Family::arg ? DType::i64 : first.dtype, {}};
      for (std::size_t i = 0; i < first.shape.size(); ++i) {
        const bool reduced = std::binary_search(axes.begin(), axes.end(), i);
        if (reduced && first.shape[i] == 0 && !has_identity)
          throw Error(ErrorKind::shape, std::string(op.name) + " over an axis without elements, shape " + to_string(first.shape));
        if (!reduced || keep) result.shape.push_back(reduced ? 1 : first.shape[i]);
      }
      return result;
    }
    case Family::matmul:
      if (operands[1].absent || operands[1].dtype != first.dtype || !computes(op, first.dtype)) refuse(op, operands);
      return {first.dtype, matmul_shape(first.shape, operands[1].shape)};
  }
  return {};
}

}  // namespace walle
