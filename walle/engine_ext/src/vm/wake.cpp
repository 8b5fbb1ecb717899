#include "vm/wake.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace walle::vm {

Wake::Wake(Means means) : means_(means) {
#ifdef __linux__
  if (means == Means::event) {
    read_ = above_standard(Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
    if (!read_) throw std::system_error(errno, std::generic_category(), "eventfd");
    return;
  }
#endif
  int fds[2];
  if ((means == Means::messages ? socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) : pipe(fds)) != 0)
    throw std::system_error(errno, std::generic_category(), "a descriptor to wake up a thread");
  read_ = above_standard(Descriptor(fds[0]));
  write_ = above_standard(Descriptor(fds[1]));
  for (const int fd : {read_.get(), write_.get()}) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

void Wake::set() const noexcept {
  std::uint64_t one = 1;
  iovec part{&one, sizeof one};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  const auto send = [&] {
    if (means_ == Means::messages) return sendmsg(write_.get(), &header, MSG_DONTWAIT);
    return write(write_ ? write_.get() : read_.get(), &one, sizeof one);
  };
  // What is full is readable too, which is sufficient.
  while (send() < 0 && errno == EINTR) {
  }
}

void Wake::clear() const noexcept {
  std::uint64_t sink = 0;
  iovec part{&sink, sizeof sink};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  for (;;) {
    const ssize_t size =
        means_ == Means::messages ? recvmsg(read_.get(), &header, MSG_DONTWAIT) : read(read_.get(), &sink, sizeof sink);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0 || !write_) return;
  }
}

std::vector<int> Wake::descriptors() const {
  std::vector<int> all{read_.get()};
  if (write_) all.push_back(write_.get());
  return all;
}

}  // namespace walle::vm
