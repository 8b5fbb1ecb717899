// StopGradient: the values of its operand, through which no gradient passes.
#include <cstring>

#include "atomic/atomic.h"

namespace walle {

namespace {

class CopyStep final : public HostStep {
 public:
  explicit CopyStep(const TensorType& result)
      : bytes_(static_cast<std::size_t>(element_count(result.shape)) * item_size(result.dtype)) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    if (bytes_ > 0) std::memcpy(output, inputs[0], bytes_);
  }

 private:
  std::size_t bytes_;
};

}  // namespace

TensorType infer_stop_gradient(std::span<const Operand> operands, const Attributes&) {
  return {operands[0].dtype, operands[0].shape};
}

std::unique_ptr<HostStep> make_stop_gradient(const StepRequest& request) { return std::make_unique<CopyStep>(request.result); }

}  // namespace walle
