// One thread for all alarms of the process. It never takes a GIL: what it rings may only lock, post and start threads.
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

  // The process's own; its thread starts with the first alarm and is never joined.
  static Watchdog& instance();

  // `ring` runs once, on the watchdog's thread, with none of its locks held.
  Alarm set(Clock::time_point when, std::function<void()> ring);
  // Forgets the alarm, or does nothing where it is ringing or has rung: `ring` must know by itself whether it is still wanted.
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
  Clock::time_point wakes_ = Clock::time_point::max();  // when the thread looks again unasked
};

}  // namespace walle::vm
