// The engine's only exception type. Loading, planning and shape checks may throw it; kernels never throw.
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

}  // namespace walle
