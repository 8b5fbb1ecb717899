// Queue of replies from VM threads to an event loop, with a descriptor that is readable while replies wait. A VM thread therefore
// never needs the GIL of the interpreter that it replies to.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "vm/value.h"
#include "vm/wake.h"

namespace walle::vm {

enum class Outcome : std::uint8_t {
  ok,         // value: the result
  failed,     // value: a dict that describes the task's exception
  not_plain,  // text: the result cannot leave the VM
  deadline,   // text: where the task was when its time ran out
  limit,      // value: the limit's name; text: where the task was when it exceeded the limit
  cancelled,
  closed,        // text: why the VM does not run the call
  callback,      // value: (name, arguments) of a function of the caller, whose result the VM waits for
  crashed,       // text: how the VM host ended; the call ended it
  lost,          // text: how the VM host ended; another call may have ended it
  not_received,  // text: for what the receiver lacks memory or descriptors
};

struct Reply {
  std::uint64_t call_id = 0;
  Outcome outcome = Outcome::ok;
  Value value;
  std::string text;
};

// Receiver of a call's replies; `push` comes from any thread and does not block.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void push(Reply reply) = 0;
};

class ReplyQueue final : public ReplySink {
 public:
  void push(Reply reply) override;
  std::vector<Reply> take_all();
  int fd() const noexcept { return wake_.fd(); }

 private:
  const Wake wake_;
  std::mutex mutex_;
  std::vector<Reply> replies_;
};

}  // namespace walle::vm
