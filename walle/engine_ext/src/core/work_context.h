// Per-thread work context: an account of engine memory, a stop flag and a deadline, set where a thread runs for a VM (§4.3).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace walle {

class WorkContext {
 public:
  virtual ~WorkContext() = default;

  // Called on the allocating thread before engine memory is allocated; false refuses the allocation.
  virtual bool may_allocate(std::int64_t size_bytes) = 0;
  // Called around the loading of a model, on the thread that runs for the VM: the deadline stands still meanwhile.
  virtual void begin_loading() = 0;
  virtual void end_loading() = 0;

  std::atomic<std::int64_t> engine_bytes{0};  // allocated by its threads and not yet freed, on whichever thread
  std::atomic<bool> stopping{false};          // a stop was requested
};

// The context of this thread; null where it runs for no VM.
std::shared_ptr<WorkContext>& current_work_context() noexcept;

// Long work was stopped on request. Thrown between operators.
class WorkStopped : public std::runtime_error {
 public:
  WorkStopped() : std::runtime_error("the call was stopped in the engine") {}
};

// Loading of a model, from construction to destruction. They nest.
class Loading {
 public:
  Loading() : context_(current_work_context()) {
    if (context_) context_->begin_loading();
  }
  ~Loading() {
    if (context_) context_->end_loading();
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

 private:
  const std::shared_ptr<WorkContext> context_;
};

inline void throw_if_stopped() {
  if (const auto& context = current_work_context(); context && context->stopping.load(std::memory_order_relaxed))
    throw WorkStopped();
}

// Polls the stop flag every few million elements, which take some milliseconds. For loops that are long: a broadcast view has any
// number of elements, a factorisation does n^3 operations.
class StopPoll {
 public:
  // Counts `elements` before they are worked on; returns false once a stop was requested, and from then on.
  bool proceed(std::int64_t elements) noexcept {
    if (context_ == nullptr || (left_ -= elements) > 0) return !stopped_;
    left_ = kInterval;
    stopped_ = stopped_ || context_->stopping.load(std::memory_order_relaxed);
    return !stopped_;
  }
  bool stopped() const noexcept { return stopped_; }

  static constexpr std::int64_t kInterval = std::int64_t{1} << 22;

 private:
  const WorkContext* context_ = current_work_context().get();
  std::int64_t left_ = kInterval;
  bool stopped_ = false;
};

// Calls work(first, last) for one block of [0, count) after the other, polling before each. An item is as much work as `weight`
// elements. Returns false once a stop was requested, with the rest left out.
template <class F>
bool run_in_blocks(std::int64_t count, std::int64_t weight, StopPoll& poll, F&& work) {
  const std::int64_t at_once = std::max<std::int64_t>(StopPoll::kInterval / 4 / weight, 1);
  for (std::int64_t first = 0; first < count; first += at_once) {
    const std::int64_t last = std::min(first + at_once, count);
    if (!poll.proceed((last - first) * weight)) return false;
    work(first, last);
  }
  return !poll.stopped();
}

}  // namespace walle
