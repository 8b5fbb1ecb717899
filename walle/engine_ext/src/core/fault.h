// Fault that kernels of a run find with a value of an operand that shape inference cannot check (an index out of range, say).
#pragma once
#include <atomic>

namespace walle {

// The place for the faults of the steps that run between construction and destruction, on this thread and its team's.
class FaultScope {
 public:
  FaultScope() noexcept : before_(exchange(this)) {}
  ~FaultScope() { exchange(before_); }
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

  // Return the last fault, a text that lives as long as the program; null: none.
  const char* what() const noexcept { return what_.load(std::memory_order_relaxed); }

  // Reports a fault to the current scope of this thread, if there is one.
  static void report(const char* what) noexcept {
    if (FaultScope* scope = current()) scope->what_.store(what, std::memory_order_relaxed);
  }
  static FaultScope* current() noexcept;
  // Replaces the current scope and returns the one before.
  static FaultScope* exchange(FaultScope* scope) noexcept;

 private:
  FaultScope* const before_;
  std::atomic<const char*> what_{nullptr};
};

}  // namespace walle
