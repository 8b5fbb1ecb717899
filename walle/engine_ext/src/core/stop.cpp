#include "core/stop.h"

#include "core/work_context.h"

namespace walle {

namespace {

thread_local StopFlag* run_stop = nullptr;

const char* text(StopReason reason) {
  switch (reason) {
    case StopReason::none:
    case StopReason::vm: return "the call was stopped in the engine";
    case StopReason::cancelled: return "the run was cancelled by another thread; the session can run again";
    case StopReason::deadline:
      return "the run exceeded its deadline and was stopped; give it more time, or a smaller input. The session can run again";
    case StopReason::signal: return "the run was stopped by a signal";
  }
  return "";
}

}  // namespace

StopFlag* current_stop() noexcept { return run_stop != nullptr ? run_stop : current_work_context().get(); }

StopFlag* exchange_stop(StopFlag* flag) noexcept { return std::exchange(run_stop, flag); }

RunStop::RunStop(const StopLimits& limits) noexcept : limits_(limits), outer_(current_stop()), before_(exchange_stop(this)) {
  is_watching_ = outer_ != nullptr || limits_.deadline != StopLimits::Clock::time_point::max();
  if (limits_.signals == nullptr) return;
  attention_ = limits_.signals->word;
  attention_mask_ = limits_.signals->mask;
}

bool RunStop::stop(StopReason reason) noexcept {
  StopReason none = StopReason::none;
  reason_.compare_exchange_strong(none, reason, std::memory_order_relaxed);
  stopping.store(true, std::memory_order_release);  // readers that see it find the reason
  return true;
}

bool RunStop::watch() noexcept {
  if (outer_ != nullptr && outer_->poll()) return stop(outer_->reason());
  if (limits_.deadline != StopLimits::Clock::time_point::max() && StopLimits::Clock::now() >= limits_.deadline)
    return stop(StopReason::deadline);
  if (limits_.signals == nullptr || !limits_.signals->pending() || std::this_thread::get_id() != thread_) return false;
  StopFlag* const own = exchange_stop(nullptr);  // the handlers are not part of the run
  const bool raised = limits_.signals->handle();
  exchange_stop(own);
  return raised && stop(StopReason::signal);
}

WorkStopped::WorkStopped(StopReason reason) : std::runtime_error(text(reason)), reason_(reason) {}

}  // namespace walle
