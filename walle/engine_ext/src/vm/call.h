// One call to a VM: what was asked, and how far it has come.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "vm/task_vm.h"

namespace walle::vm {

struct TaskVm::Call {
  std::shared_ptr<ReplySink> replies;
  std::uint64_t id = 0;
  std::string function;
  Value arguments;
  std::optional<std::chrono::nanoseconds> deadline;

  // Guarded by the VM's mutex.
  bool ended = false;
  bool answered = false;               // the last reply has been sent
  std::optional<Outcome> stop_reason;  // deadline, limit, cancelled or closed
  std::string limit;                   // the limit that was exceeded, where that is the reason
  std::string place;                   // file:line in function of the task when the stop was requested
  std::optional<Watchdog::Alarm> alarm;
  Watchdog::Clock::time_point stops_at;  // end of the deadline; later while the call loads something
  Watchdog::Clock::time_point abandons_at;
  std::chrono::nanoseconds load_time = kLoadTime;         // how much longer the deadline may stand still
  std::optional<std::pair<Value, bool>> callback_result;  // true: an error
};

inline constexpr const char* kClosed = "the VM is closed";

}  // namespace walle::vm
