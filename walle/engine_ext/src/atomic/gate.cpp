// Gate: a gradient where another value is between bounds, else 0; the gradient of Relu and of Clip by numbers (§4.2).
#include <algorithm>

#include "atomic/atomic.h"
#include "kernels/channels.h"

namespace walle {

namespace {

class GateStep final : public SharedStep {
 public:
  explicit GateStep(const StepRequest& request)
      : kernel_(request.table.channels[request.result.dtype == DType::f64 ? 1 : 0]->gate),
        count_(element_count(request.result.shape)),
        item_(static_cast<std::int64_t>(item_size(request.result.dtype))) {
    const Attributes& attributes = request.attributes;
    args_.has_low = attributes.has("low");
    args_.has_high = attributes.has("high");
    args_.low = attributes.get_float("low", 0);
    args_.high = attributes.get_float("high", 0);
    args_.includes_bounds = attributes.get_int("includes_bounds", 0) != 0;
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kPiece = 1 << 14;
    team.each((count_ + kPiece - 1) / kPiece,
              [&](std::int64_t i, int) {
                GateArgs args = args_;
                args.g = inputs[0] + i * kPiece * item_;
                args.x = inputs[1] + i * kPiece * item_;
                args.out = output + i * kPiece * item_;
                args.count = std::min(kPiece, count_ - i * kPiece);
                kernel_(args);
              },
              2.0 * static_cast<double>(count_));
  }

 private:
  decltype(ChannelKernels::gate) kernel_;
  std::int64_t count_, item_;
  GateArgs args_;
};

}  // namespace

// g and x of one shape -> g where low < x < high, else 0. An absent bound holds. With includes_bounds, g where low <= x <= high;
// a NaN of x then passes.
TensorType infer_gate(std::span<const Operand> operands, const Attributes&) {
  const Operand &g = operands[0], &x = operands[1];
  if ((g.dtype != DType::f32 && g.dtype != DType::f64) || x.dtype != g.dtype)
    throw Error(ErrorKind::dtype, "Gate does not support " + std::string(dtype_name(g.dtype)) + " and " +
                                      std::string(dtype_name(x.dtype)) + "; it takes float32 or float64");
  if (x.shape != g.shape)
    throw Error(ErrorKind::shape, "Gate of shapes " + to_string(g.shape) + " and " + to_string(x.shape) + "; they must be equal");
  return {g.dtype, g.shape};
}

std::unique_ptr<HostStep> make_gate(const StepRequest& request) { return std::make_unique<GateStep>(request); }

}  // namespace walle
