#include "vm/reply_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace walle::vm {

ReplyQueue::ReplyQueue() {
#ifdef __linux__
  read_fd_ = write_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (read_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
#else
  int fds[2];
  if (pipe(fds) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  for (const int fd : fds) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  read_fd_ = fds[0];
  write_fd_ = fds[1];
#endif
}

ReplyQueue::~ReplyQueue() {
  close(read_fd_);
  if (write_fd_ != read_fd_) close(write_fd_);
}

void ReplyQueue::push(Reply reply) {
  const std::lock_guard lock(mutex_);
  replies_.push_back(std::move(reply));
  if (replies_.size() > 1) return;  // readable already
  const std::uint64_t one = 1;
  // A full pipe is readable too, which is sufficient.
  while (write(write_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<Reply> ReplyQueue::take_all() {
  const std::lock_guard lock(mutex_);
  std::uint64_t sink;
  while (read(read_fd_, &sink, sizeof sink) > 0 && read_fd_ != write_fd_) {
  }
  return std::exchange(replies_, {});
}

}  // namespace walle::vm
