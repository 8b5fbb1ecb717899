// Timer thread for all alarms of the process. It never takes a GIL: an alarm's action may only lock, post and start threads.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace walle::vm {

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  using Alarm = std::pair<Clock::time_point, std::uint64_t>;

  // The instance of the process; its thread starts with the first alarm and is never joined.
  static Watchdog& instance();

  // `action` runs once, on the watchdog's thread, with none of its locks held.
  Alarm set(Clock::time_point when, std::function<void()> action);
  // Removes the alarm. Does nothing where its action runs or has run, so that `action` must check whether it still applies.
  void clear(const Alarm& alarm);

  // Around a fork, on the thread that forks. The child begins with no alarms and no thread.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool is_child);

 private:
  Watchdog() = default;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Alarm, std::function<void()>> alarms_;
  std::uint64_t next_ = 1;
  bool started_ = false;
  Clock::time_point wakes_at_ = Clock::time_point::max();  // time at which the thread wakes up unless it is notified
};

}  // namespace walle::vm
