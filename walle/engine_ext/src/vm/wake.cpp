#include "vm/wake.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace walle::vm {

Wake::Wake() {
#ifdef __linux__
  read_ = above_standard(Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  if (!read_) throw std::system_error(errno, std::generic_category(), "eventfd");
#else
  int fds[2];
  if (pipe(fds) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  read_ = above_standard(Descriptor(fds[0]));
  write_ = above_standard(Descriptor(fds[1]));
  for (const int fd : {read_.get(), write_.get()}) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
#endif
}

void Wake::set() const noexcept {
  const std::uint64_t one = 1;
  // A full pipe is readable too, which is sufficient.
  while (write(write_ ? write_.get() : read_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Wake::clear() const noexcept {
  std::uint64_t sink;
  for (;;) {
    const ssize_t size = read(read_.get(), &sink, sizeof sink);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0 || !write_) return;
  }
}

}  // namespace walle::vm
