// Loading within a task VM's call: models and library modules, whose time and stops differ from those of the task's own code.
#include <algorithm>

#include "vm/call.h"
#include "vm/interpreter.h"
#include "vm/task_vm.h"

namespace walle::vm {

namespace {

// Beyond the VM's limits. All library modules together take 5 MB.
constexpr std::int64_t kImportBytes = std::int64_t{16} << 20;
constexpr int kImportFrames = 500;

}  // namespace

void TaskVm::begin_loading(std::chrono::nanoseconds longest) {
  if (loading_depth_++ > 0) return;
  const std::lock_guard lock(mutex_);
  if (!current_ || !current_->deadline || current_->stop_reason) return;
  loading_since_ = Watchdog::Clock::now();
  extension_ = std::min(longest, current_->load_time);
  set_deadline(current_, current_->stops_at + extension_);
}

void TaskVm::end_loading() {
  if (--loading_depth_ > 0) return;
  const std::lock_guard lock(mutex_);
  if (!current_ || !current_->deadline || current_->stop_reason) return;
  const auto taken = std::min<std::chrono::nanoseconds>(Watchdog::Clock::now() - loading_since_, extension_);
  set_deadline(current_, current_->stops_at - (extension_ - taken));
  current_->load_time -= taken;
}

bool TaskVm::begin_import() {
  bool is_stopped = false;
  {
    const std::lock_guard lock(mutex_);
    is_stopped = current_ && current_->stop_reason;
    if (!is_stopped) {
      is_importing_ = true;
      import_until_ = Watchdog::Clock::now() + kImportTime;
      was_stopped_in_import_ = false;
    }
  }
  if (is_stopped) {
    raise_stopped("the call was stopped before an import");
    return false;
  }
  begin_loading(kImportTime);
  had_exceeded_memory_ = has_exceeded_memory_;
  outer_memory_limit_ = heap_->limit();
  if (outer_memory_limit_ > 0) heap_->set_limit(std::max(outer_memory_limit_, heap_->used_bytes()) + kImportBytes);
  outer_recursion_limit_ = Py_GetRecursionLimit();
  Py_SetRecursionLimit(outer_recursion_limit_ + kImportFrames);
  is_outer_collecting_ = PyGC_Disable() != 0;  // a collection would run finalizers of the task, whose stop would wait
  return true;
}

bool TaskVm::import_was_cut() const {
  const std::lock_guard lock(mutex_);
  return was_stopped_in_import_ || (has_exceeded_memory_ && !had_exceeded_memory_);
}

bool TaskVm::end_import() {
  if (is_outer_collecting_) PyGC_Enable();
  Py_SetRecursionLimit(outer_recursion_limit_);
  heap_->set_limit(outer_memory_limit_);
  end_loading();
  bool is_stopped = false;
  {
    const std::lock_guard lock(mutex_);
    is_importing_ = false;
    is_stopped = current_ && current_->stop_reason;
    if (is_stopped && state_ != State::abandoned) {
      heap_->stopping = true;
      set_abandonment(current_, Watchdog::Clock::now() + settings_.grace);
    }
  }
  if (!is_stopped) return true;
  changed_.notify_all();
  raise_stopped("the call was stopped during an import");
  return false;
}

}  // namespace walle::vm
