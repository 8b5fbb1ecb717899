// Descriptor that other threads make readable, to wake up a thread that polls it.
#pragma once
#include "vm/descriptor.h"

namespace walle::vm {

class Wake {
 public:
  Wake();  // throws std::system_error where the system has no descriptor left
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  int fd() const noexcept { return read_.get(); }
  // Makes the descriptor readable. From any thread.
  void set() const noexcept;
  // On the thread that polls.
  void clear() const noexcept;

 private:
  Descriptor read_;
  Descriptor write_;  // none on Linux: an eventfd is both
};

}  // namespace walle::vm
