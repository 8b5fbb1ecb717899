// CumSum and CumProd: running totals along one axis.
#include <algorithm>

#include "atomic/conversion.h"

namespace walle {

namespace {

class ScanStep final : public HostStep {
 public:
  ScanStep(BinaryOp op, const Layout& input, const TensorType& result, std::size_t axis, const Attributes& attributes,
           const Table& table)
      : length_(input.shape[axis]),
        exclusive_(attributes.get_int("exclusive", 0) != 0),
        reverse_(attributes.get_int("reverse", 0) != 0) {
    const auto type = static_cast<std::size_t>(compute_index(input.dtype));
    join_ = table.binary[static_cast<std::size_t>(op)][type];
    copy_ = table.cast[type][type];
    constexpr std::size_t kI64 = 3;
    const std::int64_t identity = op == BinaryOp::Mul ? 1 : 0;
    table.cast[kI64][type](&identity, 0, &identity_, 1);
    const std::size_t item = item_size(input.dtype);
    Dims shape = input.shape, in = input.strides, out = contiguous_strides(result.shape);
    in_step_ = in[axis] * static_cast<std::int64_t>(item);
    out_step_ = out[axis] * static_cast<std::int64_t>(item);
    for (Dims* dims : {&shape, &in, &out}) dims->erase(dims->begin() + static_cast<std::ptrdiff_t>(axis));
    others_ = LoopNest<2>::make(shape, {in, out}, {item, item});
    rows_ = others_.axes > 0 && others_.row_stride(1, item) == 1;
    stride_ = others_.row_stride(0, item);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    if (length_ == 0) return;
    const std::int64_t row = rows_ ? others_.row() : 1;
    StopPoll poll;
    others_.walk({inputs[0], output}, rows_ ? 1 : 0, [&](const auto& at) {
      const std::int64_t in_step = reverse_ ? -in_step_ : in_step_, out_step = reverse_ ? -out_step_ : out_step_;
      const std::byte* in = at[0] + (reverse_ ? (length_ - 1) * in_step_ : 0);
      std::byte* out = at[1] + (reverse_ ? (length_ - 1) * out_step_ : 0);
      if (exclusive_)
        copy_(&identity_, 0, out, row);
      else
        copy_(in, stride_, out, row);
      constexpr std::int64_t kCall = 16;  // elements whose time a call of the kernel takes
      for (std::int64_t i = 1; i < length_; ++i) {
        if (!poll.proceed(kCall + row)) return false;
        join_(out, 1, exclusive_ ? in : in + in_step, stride_, out + out_step, row);
        in += in_step;
        out += out_step;
      }
      return true;
    });
  }

 private:
  BinaryFn join_;
  UnaryFn copy_;
  LoopNest<2> others_;
  alignas(8) std::byte identity_[kMaxItemSize] = {};
  std::int64_t length_, in_step_, out_step_, stride_;
  bool exclusive_, reverse_, rows_;
};

TensorType infer(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims axis = required_numbers(operands, 1, attributes, "axis");
  if (axis.size() != 1) throw Error(ErrorKind::shape, "'axis' must be one number");
  normal_axis(axis[0], operands[0].shape.size());
  if (compute_index(operands[0].dtype) < 0 || operands[0].dtype == DType::b8)
    throw Error(ErrorKind::dtype, "a running total does not support " + std::string(dtype_name(operands[0].dtype)));
  return {operands[0].dtype, operands[0].shape};
}

std::unique_ptr<HostStep> make(BinaryOp op, const StepRequest& request) {
  std::vector<Operand> operands(request.inputs.size());
  for (std::size_t i = 0; i < operands.size(); ++i)
    operands[i] = {request.inputs[i].dtype, request.inputs[i].shape, request.inputs[i].constant, request.inputs[i].absent};
  const std::size_t axis = normal_axis(required_numbers(operands, 1, request.attributes, "axis")[0], operands[0].shape.size());
  const auto step = [&](const Layout& input, const TensorType& result) {
    return std::make_unique<ScanStep>(op, input, result, axis, request.attributes, request.table);
  };
  if (!is_half(request.inputs[0].dtype)) return step(request.inputs[0], request.result);
  return std::make_unique<WidenedStep>(
      request.inputs.first(1), request.result, request.table,
      [&](std::span<const Layout> wide, const TensorType& result) { return step(wide[0], result); });
}

}  // namespace

TensorType infer_cum_prod(std::span<const Operand> operands, const Attributes& attributes) { return infer(operands, attributes); }
TensorType infer_cum_sum(std::span<const Operand> operands, const Attributes& attributes) { return infer(operands, attributes); }
std::unique_ptr<HostStep> make_cum_prod(const StepRequest& request) { return make(BinaryOp::Mul, request); }
std::unique_ptr<HostStep> make_cum_sum(const StepRequest& request) { return make(BinaryOp::Add, request); }

}  // namespace walle
