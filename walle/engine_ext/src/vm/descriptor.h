// Owner of a file descriptor.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace walle::vm {

class Descriptor {
 public:
  explicit Descriptor(int owned = -1) noexcept : fd_(owned) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_;
};

// Returns the descriptor with a number above those of the standard streams. A process may have closed these, and what is printed
// all the same would go into whatever has taken their place. Returns none where the system has no descriptor left.
inline Descriptor above_standard(Descriptor descriptor) noexcept {
  if (descriptor.get() < 0 || descriptor.get() > STDERR_FILENO) return descriptor;
  return Descriptor(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

}  // namespace walle::vm
