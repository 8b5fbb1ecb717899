// Tasks that one event triggers, and the options of a condition that decide at its last event.
#pragma once
#include <span>

#include "stream/condition.h"

namespace walle::stream {

// Time of the latest trigger of one pair of condition and task.
struct LatestTrigger {
  bool any = false;
  std::int64_t ts_ms = 0;
};

class TriggeredTasks {
 public:
  void start(std::int64_t ts_ms, ContentsTest test) noexcept {
    ts_ms_ = ts_ms;
    test_ = test;
    count_ = 0;
  }

  void add(Id task) {
    *reserve(1) = task;
    ++count_;
  }
  // Returns where at most `most` more tasks may be written; `end_at` then says where they end.
  Id* reserve(std::size_t most) {
    if (tasks_.size() - count_ < most) tasks_.resize(2 * (count_ + most));
    return tasks_.data() + count_;
  }
  void end_at(const Id* end) noexcept { count_ = static_cast<std::size_t>(end - tasks_.data()); }

  // Returns whether the event's contents pass.
  bool passes(std::uint32_t predicate) const { return predicate == 0 || test_.call(test_.context, predicate); }

  // Returns whether the event is in time: within the bound since the match's first event, and after the cool-down. A clock that
  // went back counts as no time in the first; by the cool-down or more, it ends the second.
  bool in_time(const Condition& condition, std::int64_t first_ms, const LatestTrigger& latest) const noexcept {
    if (condition.within_ms != 0 && ts_ms_ - first_ms > condition.within_ms) return false;
    if (condition.cooldown_ms == 0 || !latest.any) return true;
    const std::int64_t since_ms = ts_ms_ - latest.ts_ms;
    return since_ms >= condition.cooldown_ms || since_ms <= -condition.cooldown_ms;
  }

  void add(Id task, LatestTrigger& latest) {
    latest = {true, ts_ms_};
    add(task);
  }

  // A task is here once for each of its conditions that end at the event.
  std::span<const Id> tasks() const noexcept { return {tasks_.data(), count_}; }

 private:
  std::vector<Id> tasks_;  // the first count_ are in use
  std::size_t count_ = 0;
  std::int64_t ts_ms_ = 0;
  ContentsTest test_;
};

}  // namespace walle::stream
