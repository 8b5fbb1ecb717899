// The one exception of the engine. Loading, planning and shape checks may throw it; kernels never do.
#pragma once
#include <stdexcept>
#include <string>

namespace walle {

enum class ErrorKind { model, shape, dtype, unsupported, backend };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// A plan needs the value of an operand that is known at run time only. A session refuses the model; a module computes the node
// between plans. Whoever reads an operand's `constant` throws this where there is none.
class NeedsValue final : public Error {
 public:
  explicit NeedsValue(const std::string& operand)
      : Error(ErrorKind::unsupported, "'" + operand + "' must be a constant in a Session; run the model with walle.Module") {}
};

}  // namespace walle
