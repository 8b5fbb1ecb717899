// Tasks that one event triggers, each once, with their cool-downs.
#pragma once
#include "stream/condition.h"

namespace walle::stream {

class TriggeredTasks {
 public:
  // Starts event number `event`, which is 1 or more and grows.
  void start(std::uint64_t event, std::int64_t ts_ms, ContentsTest test) noexcept {
    event_ = event;
    ts_ms_ = ts_ms;
    test_ = test;
    tasks_.clear();
  }

  // Triggers the task, unless this event has done so.
  void add(Id task) {
    TaskState& state = states_[task];
    if (state.event == event_) return;
    state.event = event_;
    state.ts_ms = ts_ms_;
    tasks_.push_back(task);
  }

  // Returns whether this event may trigger the task: it has not yet, and the condition's cool-down is over. A clock that went
  // back by the cool-down or more ends it.
  bool would_add(Id task, const Condition& condition) const noexcept {
    const TaskState& state = states_[task];
    if (state.event == event_) return false;
    if (state.event == 0 || condition.cooldown_ms == 0) return true;
    const std::int64_t since_ms = ts_ms_ - state.ts_ms;
    return since_ms >= condition.cooldown_ms || since_ms <= -condition.cooldown_ms;
  }

  // Returns whether the event's contents pass.
  bool passes(std::uint32_t predicate) const { return predicate == 0 || test_.call(test_.context, predicate); }

  const std::vector<Id>& tasks() const noexcept { return tasks_; }

  // A task's latest trigger is forgotten with its last pair.
  void add_pair(Id task) {
    if (task >= states_.size()) states_.resize(task + 1);
    ++states_[task].pairs;
  }
  void remove_pair(Id task) noexcept {
    if (--states_[task].pairs == 0) states_[task] = {};
  }

 private:
  struct TaskState {
    std::uint64_t event = 0;  // of the latest trigger; 0: none
    std::int64_t ts_ms = 0;
    std::uint32_t pairs = 0;
  };

  std::vector<TaskState> states_;  // by task
  std::vector<Id> tasks_;
  std::uint64_t event_ = 0;
  std::int64_t ts_ms_ = 0;
  ContentsTest test_;
};

}  // namespace walle::stream
