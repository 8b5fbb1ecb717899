// Softmax and normalisations of float32, a row at a time.
#include <algorithm>

#include "atomic/fused.h"

namespace walle {

namespace {

class RowsStep final : public Step {
 public:
  // Along `axes` axes from `axis` on.
  RowsStep(RowsFn kernel, const Dims& shape, std::size_t axis, std::size_t axes, double epsilon = 0) : kernel_(kernel) {
    const auto product = [&](std::size_t from, std::size_t to) {
      return element_count(
          Dims(shape.begin() + static_cast<std::ptrdiff_t>(from), shape.begin() + static_cast<std::ptrdiff_t>(to)));
    };
    args_.rows = product(0, axis);
    args_.count = product(axis, axis + axes);
    args_.columns = product(axis + axes, shape.size());
    args_.epsilon = static_cast<float>(epsilon);
    if (args_.count == 0 || args_.columns == 0) args_.rows = 0;
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    RowsArgs args = args_;
    args.in = reinterpret_cast<const float*>(inputs[0]);
    args.out = reinterpret_cast<float*>(output);
    if (scaled_) args.scale = reinterpret_cast<const float*>(inputs[1]);
    if (shifted_) args.shift = reinterpret_cast<const float*>(inputs[2]);
    kernel_(args);
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

  bool scaled_ = false, shifted_ = false;

 private:
  RowsFn kernel_;
  RowsArgs args_;
};

std::size_t axis_of(const Attributes& attributes, const Dims& shape) {
  return normal_axis(attributes.get_int("axis", -1), shape.size());
}

std::unique_ptr<Step> make_softmax(const StepRequest& request, RowsFn kernel) {
  const Dims& shape = request.result.shape;
  return std::make_unique<RowsStep>(kernel, shape, axis_of(request.attributes, shape), 1);
}

std::unique_ptr<Step> make_norm(const StepRequest& request, RowsFn kernel) {
  const Dims& shape = request.result.shape;
  const std::size_t axis = axis_of(request.attributes, shape);
  auto step = std::make_unique<RowsStep>(kernel, shape, axis, shape.size() - axis, request.attributes.get_float("epsilon", 1e-5));
  step->scaled_ = true;
  step->shifted_ = request.inputs.size() > 2 && !request.inputs[2].absent;
  return step;
}

}  // namespace

bool softmax_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table) {
  if (outputs != 1 || operands[0].dtype != DType::f32 || operands[0].shape.empty() || table.softmax == nullptr) return false;
  axis_of(attributes, operands[0].shape);  // or an error
  return true;
}

std::unique_ptr<Step> make_softmax(const StepRequest& request) { return make_softmax(request, request.table.softmax); }
std::unique_ptr<Step> make_log_softmax(const StepRequest& request) { return make_softmax(request, request.table.log_softmax); }

// Scale and shift are whole rows: those that broadcast are left to the decomposition.
bool norm_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table) {
  const Dims& shape = operands[0].shape;
  if (outputs != 1 || operands[0].dtype != DType::f32 || shape.empty() || table.layer_norm == nullptr) return false;
  if (attributes.get_int("stash_type", 1) != 1) return false;
  const std::size_t axis = axis_of(attributes, shape);
  const Dims row(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end());
  return std::all_of(operands.begin() + 1, operands.end(), [&](const Operand& operand) {
    return operand.absent || (operand.dtype == DType::f32 && operand.shape == row);
  });
}

std::unique_ptr<Step> make_layer_norm(const StepRequest& request) { return make_norm(request, request.table.layer_norm); }
std::unique_ptr<Step> make_rms_norm(const StepRequest& request) { return make_norm(request, request.table.rms_norm); }

}  // namespace walle
