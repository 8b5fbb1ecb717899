// Stop of engine work: a flag, a deadline and the signals of the program, polled between steps and within long ones.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace walle {

enum class StopReason : std::uint8_t {
  none,
  vm,         // the limit of a VM's call
  cancelled,  // another thread
  deadline,   // the run's time limit
  signal,     // a signal's handler raised an exception
};

// A stop flag. It is set on any thread and polled on those that work.
class StopFlag {
 public:
  StopFlag() = default;
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;
  virtual ~StopFlag() = default;

  // Return whether the work must stop; once true, always true.
  bool poll() noexcept {
    if (stopping.load(std::memory_order_acquire)) return true;  // acquire: its reason is there too
    return (is_watching_ || (__atomic_load_n(attention_, __ATOMIC_RELAXED) & attention_mask_) != 0) && watch();
  }
  virtual StopReason reason() const noexcept { return StopReason::vm; }

  std::atomic<bool> stopping{false};  // a stop was requested

 protected:
  // Looks at what else stops the work: where is_watching_, and where the attention word has a bit of its mask.
  virtual bool watch() noexcept { return false; }

  static constexpr std::uintptr_t kNothing = 0;
  const std::uintptr_t* attention_ = &kNothing;
  std::uintptr_t attention_mask_ = 0;
  bool is_watching_ = false;
};

// The flag of what runs on this thread: a RunStop, else its work context; null for neither.
StopFlag* current_stop() noexcept;
// Replaces the RunStop (or the flag that a helper thread of a team works for) and returns the one before.
StopFlag* exchange_stop(StopFlag* flag) noexcept;

// The signals of the program, as far as they concern work without the interpreter's lock: one is pending while the word has a bit
// of the mask. Other threads may write the word.
class SignalSource {
 public:
  SignalSource(const std::uintptr_t* pending, std::uintptr_t pending_mask) noexcept : word(pending), mask(pending_mask) {}
  virtual ~SignalSource() = default;
  bool pending() const noexcept { return (__atomic_load_n(word, __ATOMIC_RELAXED) & mask) != 0; }
  // Runs the handlers, on the thread that runs the work; returns true where one raised an exception.
  virtual bool handle() noexcept = 0;

  const std::uintptr_t* const word;
  const std::uintptr_t mask;
};

// What stops a run, beside Session::cancel and the limits of the VM that it runs in.
struct StopLimits {
  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline = Clock::time_point::max();
  SignalSource* signals = nullptr;
};

// The stop of one run or operator. It is the current one of the thread that creates and destroys it.
class RunStop final : public StopFlag {
 public:
  explicit RunStop(const StopLimits& limits) noexcept;
  ~RunStop() override { exchange_stop(before_); }

  // Stops the run, on any thread.
  void cancel() noexcept { stop(StopReason::cancelled); }
  StopReason reason() const noexcept override { return reason_.load(std::memory_order_relaxed); }

 private:
  bool watch() noexcept override;
  bool stop(StopReason reason) noexcept;

  const StopLimits limits_;
  StopFlag* const outer_;
  StopFlag* const before_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<StopReason> reason_{StopReason::none};
};

// Long work was stopped. Thrown between steps and operators.
class WorkStopped : public std::runtime_error {
 public:
  explicit WorkStopped(StopReason reason);
  StopReason reason() const noexcept { return reason_; }

 private:
  StopReason reason_;
};

inline void throw_if_stopped() {
  if (StopFlag* stop = current_stop(); stop != nullptr && stop->poll()) throw WorkStopped(stop->reason());
}

// Polls the stop flag every few million elements, which take some milliseconds. For loops that are long: a broadcast view has any
// number of elements, a factorisation does n^3 operations.
class StopPoll {
 public:
  StopPoll() noexcept : StopPoll(current_stop()) {}
  explicit StopPoll(StopFlag* stop) noexcept : stop_(stop) {}

  // Counts `elements` before they are worked on; returns false once a stop was requested, and from then on.
  bool proceed(std::int64_t elements) noexcept {
    if (stop_ == nullptr || (left_ -= elements) > 0) return !stopped_;
    left_ = kInterval;
    stopped_ = stopped_ || stop_->poll();
    return !stopped_;
  }
  bool stopped() const noexcept { return stopped_; }

  static constexpr std::int64_t kInterval = std::int64_t{1} << 22;

 private:
  StopFlag* stop_;
  std::int64_t left_ = kInterval;
  bool stopped_ = false;
};

// Calls work(first, last) for one block of [0, count) after the other, polling before each. An item is as much work as `weight`
// elements, which may be 0. Returns false once a stop was requested, with the rest left out.
template <class F>
bool run_in_blocks(std::int64_t count, std::int64_t weight, StopPoll& poll, F&& work) {
  const std::int64_t at_once = std::max<std::int64_t>(StopPoll::kInterval / 4 / std::max<std::int64_t>(weight, 1), 1);
  for (std::int64_t first = 0; first < count; first += at_once) {
    const std::int64_t last = std::min(first + at_once, count);
    if (!poll.proceed((last - first) * weight)) return false;
    work(first, last);
  }
  return !poll.stopped();
}

// The same for code that may throw: throws WorkStopped once a stop was requested.
template <class F>
void run_stoppable(std::int64_t count, std::int64_t weight, F&& work) {
  // One block is never polled, so that its flag is not looked up.
  StopPoll poll(count <= StopPoll::kInterval / 4 / std::max<std::int64_t>(weight, 1) ? nullptr : current_stop());
  if (!run_in_blocks(count, weight, poll, work)) throw_if_stopped();
}

}  // namespace walle
