#include "vm/message_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace walle::vm {

namespace {

struct Head {
  std::uint32_t body_bytes = 0;
  std::uint8_t type = 0;
  std::uint8_t descriptors = 0;
  std::uint16_t zero = 0;
};
static_assert(sizeof(Head) == 8);

constexpr std::size_t kChunk = std::size_t{64} << 10;
constexpr std::size_t kSystemDescriptors = 253;  // SCM_MAX_FD

Descriptor create_wake() {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return Descriptor(fd);
}

}  // namespace

MessageSocket::MessageSocket(Descriptor socket) : socket_(std::move(socket)), wake_(create_wake()), received_(kChunk) {}

void MessageSocket::send(Message message) {
  if (message.body.size() > UINT32_MAX) throw NotPlain("a message to or from the VM host is larger than 4 GiB");
  Outgoing outgoing;
  const Head head{static_cast<std::uint32_t>(message.body.size()), static_cast<std::uint8_t>(message.type),
                  static_cast<std::uint8_t>(message.descriptors.size())};
  outgoing.bytes.reserve(sizeof head + message.body.size());
  outgoing.bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
  outgoing.bytes.append(message.body);
  outgoing.descriptors = std::move(message.descriptors);
  const std::lock_guard lock(mutex_);
  if (is_broken_) return;
  if (pending_.empty() && write_some(outgoing)) return;
  if (is_broken_) return;
  pending_bytes_ += outgoing.bytes.size() - outgoing.sent;
  pending_.push_back(std::move(outgoing));
  if (pending_.size() == 1) wake();
}

// With mutex_ held. Returns whether all of it was written.
bool MessageSocket::write_some(Outgoing& outgoing) {
  while (outgoing.sent < outgoing.bytes.size()) {
    iovec part{outgoing.bytes.data() + outgoing.sent, outgoing.bytes.size() - outgoing.sent};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
    if (const std::size_t count = outgoing.descriptors.size(); count > 0) {  // they travel with the first byte
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
      for (std::size_t i = 0; i < count; ++i) {
        const int fd = outgoing.descriptors[i].get();
        std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    const ssize_t sent = sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS)) return false;
    if (sent < 0) {
      is_broken_ = true;
      pending_.clear();
      pending_bytes_ = 0;
      return false;
    }
    outgoing.sent += static_cast<std::size_t>(sent);
    outgoing.descriptors.clear();
  }
  return true;
}

std::size_t MessageSocket::pending_bytes() const {
  const std::lock_guard lock(mutex_);
  return pending_bytes_;
}

bool MessageSocket::has_pending() const {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

void MessageSocket::flush() {
  const std::lock_guard lock(mutex_);
  while (!pending_.empty()) {
    const std::size_t before = pending_.front().sent;
    const bool is_done = write_some(pending_.front());
    if (is_broken_) return;
    pending_bytes_ -= pending_.front().sent - before;
    if (!is_done) return;
    pending_.pop_front();
  }
}

void MessageSocket::wake() {
  const std::uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void MessageSocket::clear_wake() {
  std::uint64_t sink;
  while (read(wake_.get(), &sink, sizeof sink) < 0 && errno == EINTR) {
  }
}

bool MessageSocket::take_message(std::vector<Message>& messages, std::size_t max_bytes) {
  Head head;
  if (end_ - begin_ < sizeof head) return false;
  std::memcpy(&head, received_.data() + begin_, sizeof head);
  if (head.type >= kMessageTypes || head.zero != 0) throw MalformedMessage("a message has an unknown type");
  if (head.body_bytes > max_bytes)
    throw MalformedMessage("a message of " + std::to_string(head.body_bytes) + " bytes is too large");
  if (head.descriptors > kMaxDescriptors) throw MalformedMessage("a message has too many descriptors");
  const std::size_t size = sizeof head + head.body_bytes;
  if (end_ - begin_ < size) {  // room for the rest, but not before a part of it has come
    if (begin_ > 0) {
      std::memmove(received_.data(), received_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    if (end_ == received_.size()) received_.resize(std::min(size, 2 * received_.size()));
    return false;
  }
  Message message{static_cast<MessageType>(head.type), std::string(received_.data() + begin_ + sizeof head, head.body_bytes), {}};
  if (head.descriptors > descriptors_.size()) throw MalformedMessage("a message came without its descriptors");
  for (int i = 0; i < head.descriptors; ++i) {
    message.descriptors.push_back(std::move(descriptors_.front()));
    descriptors_.pop_front();
  }
  messages.push_back(std::move(message));
  begin_ += size;
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (received_.size() > 4 * kChunk) {
      received_.resize(kChunk);
      received_.shrink_to_fit();
    }
  }
  return true;
}

void MessageSocket::close() {
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  pending_.clear();
  pending_bytes_ = 0;
  descriptors_.clear();
  received_ = {};
  begin_ = end_ = 0;
  const Descriptor closed = std::move(socket_);
}

bool MessageSocket::receive(std::vector<Message>& messages, std::size_t max_bytes) {
  for (;;) {
    if (end_ == received_.size()) {  // a part of a small message at the end
      std::memmove(received_.data(), received_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      if (end_ == received_.size()) received_.resize(received_.size() + kChunk);
    }
    iovec part{received_.data() + end_, received_.size() - end_};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kSystemDescriptors)];
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t size = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
      if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t offset = 0; offset + sizeof(int) <= one->cmsg_len - CMSG_LEN(0); offset += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(one) + offset, sizeof fd);
        descriptors_.emplace_back(fd);
      }
    }
    if (size == 0) return false;
    if ((header.msg_flags & MSG_CTRUNC) != 0)
      throw MalformedMessage("descriptors were lost: the process has too many open files");
    if (descriptors_.size() > 2 * kSystemDescriptors) throw MalformedMessage("descriptors came without messages");
    end_ += static_cast<std::size_t>(size);
    const std::size_t before = messages.size();
    while (take_message(messages, max_bytes)) {
    }
    if (end_ < received_.size() || messages.size() > before) return true;
  }
}

}  // namespace walle::vm
