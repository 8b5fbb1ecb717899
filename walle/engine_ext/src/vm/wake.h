// Descriptor that other threads make readable, to wake up a thread that polls it.
#pragma once
#include <cstdint>
#include <vector>

#include "vm/descriptor.h"

namespace walle::vm {

class Wake {
 public:
  // Where messages are its means, it uses the calls of sockets only, so that a process may refuse `read` and `write` of it.
  enum class Means : std::uint8_t { event, messages };

  explicit Wake(Means means = Means::event);  // throws std::system_error where the system has no descriptor left
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  int fd() const noexcept { return read_.get(); }
  // Makes the descriptor readable. From any thread.
  void set() const noexcept;
  // On the thread that polls.
  void clear() const noexcept;
  // All that it uses.
  std::vector<int> descriptors() const;

 private:
  Descriptor read_;
  Descriptor write_;  // none where `read_` is an eventfd, which is both
  const Means means_;
};

}  // namespace walle::vm
