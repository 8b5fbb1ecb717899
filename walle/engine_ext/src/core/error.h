// The engine's exception types. Loading, planning and shape checks may throw them; kernels never throw.
#pragma once
#include <new>
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

// Memory that could not be allocated: how much, where that is known, and for which node. A MemoryError in Python.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message) : message_(message) {}
  OutOfMemory(const std::string& place, const std::bad_alloc& error)
      : message_(place + ": " + (dynamic_cast<const OutOfMemory*>(&error) != nullptr ? error.what() : "not enough memory")) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // copies of a runtime_error do not throw
};

}  // namespace walle
