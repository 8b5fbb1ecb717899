// Owner of a file descriptor.
#pragma once
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

}  // namespace walle::vm
