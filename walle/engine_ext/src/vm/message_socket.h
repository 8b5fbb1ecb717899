// One end of the stream socket between a device's process and its VM host. Sending never blocks: what the socket does not take
// waits in memory until the thread that polls the socket flushes it.
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "vm/descriptor.h"
#include "vm/message.h"
#include "vm/wake.h"

namespace walle::vm {

class MessageSocket {
 public:
  // Throws std::system_error where the system has no descriptor left.
  explicit MessageSocket(Descriptor socket);
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  // From any thread. Drops the message where the other end is closed, which the reader learns from `receive`.
  void send(Message message);
  // Makes the polling thread return from its poll.
  void wake() { wake_.set(); }

  // --- On the thread that polls.

  int fd() const noexcept { return socket_.get(); }
  int wake_fd() const noexcept { return wake_.fd(); }
  // All that it uses, by the calls of sockets and `poll` only.
  std::vector<int> descriptors() const;
  // What to poll the socket for, and for how many milliseconds at most: -1 for any time. Then `flush`.
  struct Interest {
    short events = 0;
    int timeout_ms = -1;
  };
  Interest interest() const;
  void flush();
  void clear_wake() { wake_.clear(); }
  // Appends the messages that have arrived, without blocking. Returns false at the end of the stream. A message for which this
  // process lacks memory or descriptors is cut. Throws MalformedMessage for a message of more than `max_bytes`, or an unknown
  // type, or descriptors beyond the limits.
  bool receive(std::vector<Message>& messages, std::size_t max_bytes);
  // Closes the socket, with all that has arrived; what is sent from now on is dropped.
  void close();

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<Descriptor> descriptors;
    std::size_t sent = 0;
  };
  // Descriptors that arrived together: those of one message.
  struct Group {
    std::vector<Descriptor> descriptors;
    bool is_cut = false;  // some of them were lost
  };
  bool write_some(Outgoing& outgoing);
  bool make_room(std::size_t size_bytes);
  void take_group(const msghdr& header);
  bool take_message(std::vector<Message>& messages, std::size_t max_bytes);
  void drop(std::size_t size_bytes);

  Descriptor socket_;
  const Wake wake_{Wake::Means::messages};
  mutable std::mutex mutex_;
  std::deque<Outgoing> pending_;
  bool is_starved_ = false;  // the system has no memory for what is pending, though the socket has room
  bool is_broken_ = false;
  // Of the polling thread: what has arrived is in received_[begin_, end_).
  std::vector<char> received_;
  std::size_t begin_ = 0, end_ = 0;
  std::size_t left_to_drop_ = 0;  // bytes of a message that was cut
  std::deque<Group> groups_;
};

}  // namespace walle::vm
