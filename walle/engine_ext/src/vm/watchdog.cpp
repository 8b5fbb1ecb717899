#include "vm/watchdog.h"

#include <new>
#include <thread>

namespace walle::vm {

Watchdog& Watchdog::instance() {
  static Watchdog& watchdog = *new Watchdog();
  return watchdog;
}

Watchdog::Alarm Watchdog::set(Clock::time_point when, std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  if (!started_) {
    std::thread([this] { run(); }).detach();
    started_ = true;
  }
  const Alarm alarm{when, next_++};
  alarms_.emplace(alarm, std::move(action));
  // An alarm after the thread's next wake-up needs no notification, so that calls that end in time cause none.
  if (when < wakes_at_) changed_.notify_one();
  return alarm;
}

void Watchdog::clear(const Alarm& alarm) {
  const std::lock_guard lock(mutex_);
  alarms_.erase(alarm);
}

void Watchdog::after_fork(bool is_child) {
  if (is_child) {
    new (&changed_) std::condition_variable();  // the old one counts a waiter that does not exist in the child
    alarms_.clear();
    started_ = false;
    wakes_at_ = Clock::time_point::max();
  }
  mutex_.unlock();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!alarms_.empty() && alarms_.begin()->first.first <= Clock::now()) {
      auto node = alarms_.extract(alarms_.begin());
      lock.unlock();
      node.mapped()();
      node = {};
      lock.lock();
    }
    if (alarms_.empty()) {
      wakes_at_ = Clock::time_point::max();
      changed_.wait(lock);
    } else {
      wakes_at_ = alarms_.begin()->first.first;
      changed_.wait_until(lock, wakes_at_);
    }
  }
}

}  // namespace walle::vm
