// A step: one atomic operator made ready for operands of known types, shapes and strides, on one backend. Sessions keep steps in
// their plans; walle.np makes one and runs it.
#pragma once
#include <memory>
#include <span>

#include "graph/op.h"

namespace walle {

struct Layout {
  DType dtype = DType::f32;
  Dims shape, strides;  // in elements
};

class Step {
 public:
  virtual ~Step() = default;
  // `inputs` are the addresses of the operands' first elements, `output` is contiguous, `scratch` aligned to 64.
  virtual void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept = 0;
  std::size_t scratch_bytes() const noexcept { return scratch_bytes_; }

 protected:
  std::size_t scratch_bytes_ = 0;
};

// `result` is what infer_atomic gave. `axes` are the reduced ones, for operators that reduce.
std::unique_ptr<Step> make_step(const OpDef& op, std::span<const Layout> inputs, const TensorType& result,
                                std::span<const std::size_t> axes, const Table& table);

}  // namespace walle
