// Activations of float32 as one pass over memory.
#include <algorithm>

#include "atomic/fused.h"
#include "core/nest.h"

namespace walle {

namespace {

class MapStep final : public SharedStep {
 public:
  MapStep(const StepRequest& request, MapOp op, double a = 0, double b = 0)
      : kernel_(request.table.map[static_cast<std::size_t>(op)]),
        count_(element_count(request.result.shape)),
        a_(static_cast<float>(a)),
        b_(static_cast<float>(b)) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kPiece = 1 << 14;
    team.each((count_ + kPiece - 1) / kPiece, [&](std::int64_t i, int) {
      const std::int64_t first = i * kPiece, bytes = first * static_cast<std::int64_t>(sizeof(float));
      kernel_(inputs[0] + bytes, output + bytes, std::min(kPiece, count_ - first), a_, b_);
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  MapFn kernel_;
  std::int64_t count_;
  float a_, b_;
};

class PReluStep final : public Step {
 public:
  explicit PReluStep(const StepRequest& request) : kernel_(request.table.prelu) {
    const Dims strides = contiguous_strides(request.result.shape);
    const Layout& slope = request.inputs[1];
    nest_ = Nest<3>::make(request.result.shape,
                          {strides, broadcast_strides(slope.shape, slope.strides, request.result.shape), strides},
                          {sizeof(float), sizeof(float), sizeof(float)});
    step_ = nest_.row_stride(1, sizeof(float));
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    nest_.walk({inputs[0], inputs[1], output}, 1, [&](const auto& at) {
      kernel_(reinterpret_cast<const float*>(at[0]), reinterpret_cast<const float*>(at[1]), step_,
              reinterpret_cast<float*>(at[2]), nest_.row());
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  PReluFn kernel_;
  Nest<3> nest_;
  std::int64_t step_;
};

}  // namespace

bool map_applies(std::span<const Operand> operands, const Attributes&, int outputs, const Table& table) {
  return outputs == 1 && operands[0].dtype == DType::f32 && table.map[0] != nullptr;
}

bool gelu_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table) {
  const std::string approximate = attributes.get_string("approximate", "none");
  return map_applies(operands, attributes, outputs, table) && (approximate == "none" || approximate == "tanh");
}

std::unique_ptr<Step> make_gelu(const StepRequest& request) {
  const bool exact = request.attributes.get_string("approximate", "none") == "none";
  return std::make_unique<MapStep>(request, exact ? MapOp::GeluErf : MapOp::GeluTanh);
}

std::unique_ptr<Step> make_hard_sigmoid(const StepRequest& request) {
  return std::make_unique<MapStep>(request, MapOp::HardSigmoid, request.attributes.get_float("alpha", 0.2),
                                   request.attributes.get_float("beta", 0.5));
}

std::unique_ptr<Step> make_hard_swish(const StepRequest& request) { return std::make_unique<MapStep>(request, MapOp::HardSwish); }

std::unique_ptr<Step> make_leaky_relu(const StepRequest& request) {
  return std::make_unique<MapStep>(request, MapOp::LeakyRelu, request.attributes.get_float("alpha", 0.01));
}

std::unique_ptr<Step> make_swish(const StepRequest& request) {
  return std::make_unique<MapStep>(request, MapOp::Swish, request.attributes.get_float("alpha", 1));
}

bool prelu_applies(std::span<const Operand> operands, const Attributes&, int outputs, const Table& table) {
  if (outputs != 1 || operands[0].dtype != DType::f32 || operands[1].dtype != DType::f32 || table.prelu == nullptr) return false;
  broadcast_strides(operands[1].shape, contiguous_strides(operands[1].shape), operands[0].shape);  // or an error
  return true;
}

std::unique_ptr<Step> make_prelu(const StepRequest& request) { return std::make_unique<PReluStep>(request); }

}  // namespace walle
