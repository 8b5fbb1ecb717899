// One end of the stream socket between a device's process and its VM host. Sending never blocks: what the socket does not take
// waits in memory until the thread that polls the socket flushes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "vm/descriptor.h"
#include "vm/message.h"

namespace walle::vm {

class MessageSocket {
 public:
  // Throws std::system_error where the system has no descriptor left.
  explicit MessageSocket(Descriptor socket);
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  // From any thread. Drops the message where the other end is closed, which the reader learns from `receive`.
  void send(Message message);
  std::size_t pending_bytes() const;
  // Makes the polling thread return from its poll.
  void wake();

  // --- On the thread that polls.

  int fd() const noexcept { return socket_.get(); }
  int wake_fd() const noexcept { return wake_.get(); }
  // Whether the thread must poll for room in the socket too.
  bool has_pending() const;
  void flush();
  void clear_wake();
  // Appends the messages that have arrived, without blocking. Returns false at the end of the stream. Throws MalformedMessage for
  // a message of more than `max_bytes`, or an unknown type, or descriptors beyond the limits.
  bool receive(std::vector<Message>& messages, std::size_t max_bytes);
  // Closes the socket, with all that has arrived; what is sent from now on is dropped.
  void close();

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<Descriptor> descriptors;
    std::size_t sent = 0;
  };
  bool write_some(Outgoing& outgoing);
  bool take_message(std::vector<Message>& messages, std::size_t max_bytes);

  Descriptor socket_;
  const Descriptor wake_;
  mutable std::mutex mutex_;
  std::deque<Outgoing> pending_;
  std::size_t pending_bytes_ = 0;
  bool is_broken_ = false;
  // Of the polling thread: what has arrived is in received_[begin_, end_).
  std::vector<char> received_;
  std::size_t begin_ = 0, end_ = 0;
  std::deque<Descriptor> descriptors_;
};

}  // namespace walle::vm
