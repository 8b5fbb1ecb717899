// Interface of a VM to its callers: a task's interpreter in this process (task_vm.h) or in the VM host (host_client.h).
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "vm/crash_record.h"
#include "vm/reply_queue.h"
#include "vm/value.h"

namespace walle::vm {

// All functions may be called from any thread; none needs a GIL, and only `join` blocks.
class VirtualMachine {
 public:
  virtual ~VirtualMachine() = default;

  // Queues a call, which gets one reply other than `callback`. The deadline counts from when the call begins to run. Throws
  // NotPlain where the arguments cannot be sent.
  virtual void submit(std::shared_ptr<ReplySink> replies, std::uint64_t call_id, std::string function, Value arguments,
                      std::optional<std::chrono::nanoseconds> deadline) = 0;
  // Stops the call, or removes it from the queue; its reply is `cancelled`. Has no effect on a call that has ended.
  virtual void cancel(std::uint64_t call_id) = 0;
  // Returns the result of the callback that the running call waits for. Throws NotPlain where it cannot be sent.
  virtual void answer(std::uint64_t call_id, Value value, bool is_error) = 0;
  // Rejects new and queued calls, stops the running one, and releases the interpreter.
  virtual void close() = 0;
  // Returns whether the VM has ended within the timeout.
  virtual bool join(std::chrono::nanoseconds timeout) = 0;

  virtual bool alive() const = 0;
  // Whether the VM was abandoned, because a call did not stop; its thread may have ended since.
  virtual bool was_abandoned() const = 0;
  // Whether it ended its VM host, for certain: no other VM was ever in it.
  virtual bool was_crashed() const = 0;
  // Whether its host ended while it ran, and it may have been the cause, as others may.
  virtual bool was_suspected() const = 0;
  // What its task was doing as its host ended, where it is suspected.
  virtual TaskPlace last_place() const = 0;
  // Why the interpreter was discarded because of what the task did, else ""; and the bytes leaked by that until the process
  // exits. Both are set once the VM has ended.
  virtual std::string reset_failure() const = 0;
  virtual std::int64_t leaked_bytes() const = 0;
  virtual std::uint64_t calls() const = 0;
  virtual double create_ms() const = 0;
};

}  // namespace walle::vm
