// Step: one operation of a plan, prepared by a device for operands of known types and shapes.
#pragma once
#include <cstddef>
#include <string_view>

namespace walle {

// Plans keep steps, and several threads run them at once. Only the device that made a step can run it, in a queue: the host's
// steps take addresses (HostStep in atomic/atomic.h).
class Step {
 public:
  virtual ~Step() = default;
  // The name of the algorithm; empty where there is only one.
  virtual std::string_view algorithm() const noexcept { return {}; }
  // Bytes of device memory beside the operands that the step needs in a queue of `threads` threads.
  virtual std::size_t scratch_bytes(int threads) const noexcept { return 0; }
  // Whether the result may have the memory of that operand: the step reads each of its elements only for the same element of the
  // result, and before it writes that.
  virtual bool may_overwrite(std::size_t operand) const noexcept { return false; }
};

}  // namespace walle
