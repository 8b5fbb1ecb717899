// What VM threads tell an event loop: notices in order, and a descriptor that is readable while there are any, so that a VM
// thread never needs the GIL of the interpreter it answers to.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "vm/channel.h"

namespace walle::vm {

enum class Outcome : std::uint8_t {
  ok,         // value: the result
  failed,     // value: a dict that describes the task's exception
  not_plain,  // text: the result cannot leave the VM
  deadline,   // text: where the task was when its time ran out
  limit,      // value: the limit's name; text: where the task was when it broke it
  cancelled,
  closed,  // text: why the VM does not run the call
  ask,     // value: (name, arguments) for the caller's side; to be answered
};

struct Notice {
  std::uint64_t call_id = 0;
  Outcome outcome = Outcome::ok;
  Value value;
  std::string text;
};

class Mailbox {
 public:
  Mailbox();  // throws std::system_error where the system has no descriptor left
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void push(Notice notice);
  std::vector<Notice> take_all();
  int fd() const noexcept { return read_fd_; }

 private:
  std::mutex mutex_;
  std::vector<Notice> notices_;
  int read_fd_ = -1;
  int write_fd_ = -1;
};

}  // namespace walle::vm
