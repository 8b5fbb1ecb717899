// Activations of float32 as one pass over memory.
#include <algorithm>

#include "atomic/fused.h"
#include "core/loop_nest.h"

namespace walle {

namespace {

class MapStep final : public SharedStep {
 public:
  MapStep(const StepRequest& request, Map map)
      : kernel_(request.table.map[static_cast<std::size_t>(map.op)]),
        count_(element_count(request.result.shape)),
        a_(static_cast<float>(map.a)),
        b_(static_cast<float>(map.b)) {}
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

class PReluStep final : public SharedStep {
 public:
  explicit PReluStep(const StepRequest& request) : kernel_(request.table.prelu) {
    const Dims strides = contiguous_strides(request.result.shape);
    const Layout& slope = request.inputs[1];
    nest_ = LoopNest<3>::make(request.result.shape,
                              {strides, broadcast_strides(slope.shape, slope.strides, request.result.shape), strides},
                              {sizeof(float), sizeof(float), sizeof(float)});
    period_ = nest_.row_stride(1, sizeof(float)) == 0 ? 1 : nest_.row();
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    nest_.split(team, {inputs[0], inputs[1], output}, 1, [&](const auto& piece, const auto& from, int) {
      piece.walk(from, 1, [&](const auto& at) {
        kernel_(reinterpret_cast<const float*>(at[0]), reinterpret_cast<const float*>(at[1]), period_,
                reinterpret_cast<float*>(at[2]), piece.row());
      });
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  PReluFn kernel_;
  LoopNest<3> nest_;
  std::int64_t period_;
};

}  // namespace

bool map_applies(std::span<const Operand> operands, const Attributes&, int outputs, const Table& table) {
  return outputs == 1 && operands[0].dtype == DType::f32 && table.map[0] != nullptr;
}

bool gelu_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table) {
  const std::string approximate = attributes.get_string("approximate", "none");
  return map_applies(operands, attributes, outputs, table) && (approximate == "none" || approximate == "tanh");
}

Map elu_map(const Attributes& attributes) { return {MapOp::Elu, attributes.get_float("alpha", 1)}; }

Map gelu_map(const Attributes& attributes) {
  return {attributes.get_string("approximate", "none") == "none" ? MapOp::GeluErf : MapOp::GeluTanh};
}

Map hard_sigmoid_map(const Attributes& attributes) {
  return {MapOp::HardSigmoid, attributes.get_float("alpha", 0.2), attributes.get_float("beta", 0.5)};
}

Map hard_swish_map(const Attributes&) { return {MapOp::HardSwish}; }

Map leaky_relu_map(const Attributes& attributes) { return {MapOp::LeakyRelu, attributes.get_float("alpha", 0.01)}; }

Map mish_map(const Attributes&) { return {MapOp::Mish}; }

Map swish_map(const Attributes& attributes) { return {MapOp::Swish, attributes.get_float("alpha", 1)}; }

std::unique_ptr<Step> make_map(const StepRequest& request, Map map) { return std::make_unique<MapStep>(request, map); }

bool prelu_applies(std::span<const Operand> operands, const Attributes&, int outputs, const Table& table) {
  if (outputs != 1 || operands[0].dtype != DType::f32 || operands[1].dtype != DType::f32 || table.prelu == nullptr) return false;
  broadcast_strides(operands[1].shape, contiguous_strides(operands[1].shape), operands[0].shape);  // or an error
  return true;
}

std::unique_ptr<Step> make_prelu(const StepRequest& request) { return std::make_unique<PReluStep>(request); }

}  // namespace walle
