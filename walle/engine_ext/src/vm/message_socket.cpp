#include "vm/message_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
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
constexpr std::size_t kCutBytes = std::size_t{4} << 10;  // bytes kept of a message for which there is no memory
constexpr int kRetryMs = 10;                             // pause where the system has no memory for a message

// macOS has neither flag; there the socket itself is set so.
#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif
#ifdef MSG_CMSG_CLOEXEC
constexpr int kReceiveClosed = MSG_CMSG_CLOEXEC;
#else
constexpr int kReceiveClosed = 0;
#endif

}  // namespace

MessageSocket::MessageSocket(Descriptor socket) : socket_(above_standard(std::move(socket))), received_(kChunk) {
  if (!socket_) throw std::system_error(errno, std::generic_category(), "the VM host's socket");
#ifdef SO_NOSIGPIPE
  const int yes = 1;
  setsockopt(socket_.get(), SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof yes);
#endif
}

std::vector<int> MessageSocket::descriptors() const {
  std::vector<int> all = wake_.descriptors();
  all.push_back(socket_.get());
  return all;
}

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
    if (const std::size_t count = outgoing.descriptors.size(); count > 0) {  // descriptors travel with the first byte
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
    const ssize_t sent = sendmsg(socket_.get(), &header, MSG_DONTWAIT | kNoSignal);
    if (sent < 0 && errno == EINTR) continue;
    is_starved_ = sent < 0 && (errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS);
    if (is_starved_ || (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) return false;
    if (sent < 0) {
      is_broken_ = true;
      pending_.clear();
      return false;
    }
    outgoing.sent += static_cast<std::size_t>(sent);
    outgoing.descriptors.clear();
  }
  return true;
}

MessageSocket::Interest MessageSocket::interest() const {
  const std::lock_guard lock(mutex_);
  if (is_starved_) return {POLLIN, kRetryMs};  // the socket may have room, so that POLLOUT would return at once
  return {static_cast<short>(pending_.empty() ? POLLIN : POLLIN | POLLOUT), -1};
}

void MessageSocket::flush() {
  const std::lock_guard lock(mutex_);
  while (!pending_.empty() && write_some(pending_.front())) pending_.pop_front();
}

// Drops bytes that have arrived, or that will.
void MessageSocket::drop(std::size_t size_bytes) {
  const std::size_t arrived = std::min(size_bytes, end_ - begin_);
  begin_ += arrived;
  left_to_drop_ = size_bytes - arrived;
  if (begin_ < end_) return;
  begin_ = end_ = 0;
  if (received_.size() > 4 * kChunk) {
    received_.resize(kChunk);
    received_.shrink_to_fit();
  }
}

bool MessageSocket::take_message(std::vector<Message>& messages, std::size_t max_bytes) {
  if (left_to_drop_ > 0) drop(left_to_drop_);
  Head head;
  if (end_ - begin_ < sizeof head) return false;
  std::memcpy(&head, received_.data() + begin_, sizeof head);
  if (head.type >= kMessageTypes || head.zero != 0) throw MalformedMessage("a message has an unknown type");
  if (head.body_bytes > max_bytes)
    throw MalformedMessage("a message of " + std::to_string(head.body_bytes) + " bytes is too large");
  if (head.descriptors > kMaxDescriptors) throw MalformedMessage("a message has too many descriptors");
  const std::size_t size = sizeof head + head.body_bytes;
  Message message{static_cast<MessageType>(head.type), {}, {}};
  // Room for the rest, but not before a part of it has come.
  if (end_ - begin_ < size && make_room(size)) return false;
  const std::size_t arrived = std::min(size, end_ - begin_) - sizeof head;
  try {
    message.is_cut = arrived < head.body_bytes;
    message.body.assign(received_.data() + begin_ + sizeof head, message.is_cut ? std::min(arrived, kCutBytes) : arrived);
  } catch (const std::bad_alloc&) {
    message.is_cut = true;
    message.body.assign(received_.data() + begin_ + sizeof head, std::min(arrived, kCutBytes));
  }
  if (head.descriptors > 0) {
    if (groups_.empty()) throw MalformedMessage("a message came without its descriptors");
    Group group = std::move(groups_.front());
    groups_.pop_front();
    if (!group.is_cut && group.descriptors.size() != head.descriptors)
      throw MalformedMessage("a message came with another number of descriptors than it says");
    message.is_cut = message.is_cut || group.is_cut;
    if (!message.is_cut) message.descriptors = std::move(group.descriptors);
  }
  messages.push_back(std::move(message));
  drop(size);
  return true;
}

void MessageSocket::close() {
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  pending_.clear();
  groups_.clear();
  received_ = {};
  begin_ = end_ = left_to_drop_ = 0;
  const Descriptor closed = std::move(socket_);
}

// Returns whether there is room for more of the message of this size that begins at begin_.
bool MessageSocket::make_room(std::size_t size_bytes) {
  if (begin_ > 0) {
    std::memmove(received_.data(), received_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ < received_.size()) return true;
  try {
    received_.resize(std::min(size_bytes, 2 * received_.size()));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void MessageSocket::take_group(const msghdr& header) {
  Group group;
  for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(const_cast<msghdr*>(&header), one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t offset = 0; offset + sizeof(int) <= one->cmsg_len - CMSG_LEN(0); offset += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + offset, sizeof fd);
      if (kReceiveClosed == 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
      group.descriptors.push_back(above_standard(Descriptor(fd)));
    }
  }
  group.is_cut = (header.msg_flags & MSG_CTRUNC) != 0;
  if (group.is_cut) group.descriptors.clear();
  if (group.is_cut || !group.descriptors.empty()) groups_.push_back(std::move(group));
}

bool MessageSocket::receive(std::vector<Message>& messages, std::size_t max_bytes) {
  for (;;) {
    if (end_ == received_.size()) make_room(received_.size() + kChunk);  // a part of a small message at the end
    iovec part{received_.data() + end_, received_.size() - end_};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t size = recvmsg(socket_.get(), &header, MSG_DONTWAIT | kReceiveClosed);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    take_group(header);
    if (size == 0) return false;
    end_ += static_cast<std::size_t>(size);
    const std::size_t before = messages.size();
    while (take_message(messages, max_bytes)) {
    }
    // A message's descriptors come with its first byte, and one part of the stream brings those of one message only.
    if (groups_.size() > 1) throw MalformedMessage("descriptors came without messages");
    if (end_ < received_.size() || messages.size() > before) return true;
  }
}

}  // namespace walle::vm
