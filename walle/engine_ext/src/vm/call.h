// One call on its way through a VM.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "vm/interpreter.h"

namespace walle::vm {

struct Interpreter::Call {
  std::shared_ptr<Mailbox> mailbox;
  std::uint64_t id = 0;
  std::string function;
  Value arguments;
  std::optional<std::chrono::nanoseconds> deadline;

  // Guarded by the VM's mutex.
  bool ended = false;
  bool answered = false;            // its last notice is out
  std::optional<Outcome> stopping;  // deadline, limit, cancelled or closed
  std::string limit;                // which one, where that is why
  std::string place;                // where the stopper first found it
  std::optional<Watchdog::Alarm> alarm;
  std::optional<std::pair<Value, bool>> answer;  // to its ask; true: an error
};

inline constexpr const char* kClosed = "the VM is closed";

}  // namespace walle::vm
