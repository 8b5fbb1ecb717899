// Trigger conditions with options and the tasks that they trigger (§5.1), on numbered ids.
#pragma once
#include "stream/consecutive_matcher.h"
#include "stream/skipping_matcher.h"
#include "stream/triggered_tasks.h"

namespace walle::stream {

class TriggerTrie {
 public:
  // Adds the pair of condition and task, matched by events from now on, and returns true; false if it is there already. The
  // condition has 1 to kMaxLength trigger ids, the wildcard's or kFirstId and more, and stands for at most kMaxSequences
  // sequences.
  bool add(const Condition& condition, Id task);
  // Removes the pair and returns true; false if it is not there.
  bool remove(const Condition& condition, Id task);
  // Returns the task of each condition that ends at this event, in no order, until the next call.
  std::span<const Id> feed(Id event_id, Id page_id, Moment moment, ContentsTest test) {
    ++event_;
    triggered_.start(moment.ts_ms, test);
    consecutive_.feed(event_id, page_id, moment, event_, triggered_);
    if (skipping_.size() != 0) skipping_.feed(event_id, page_id, moment, event_, triggered_);
    return triggered_.tasks();
  }

  std::size_t size() const noexcept { return size_; }
  // Returns the length of the dynamic pending list: parents of the nodes that the next event may match, and conditions with
  // a match under way between whose events others may come.
  std::size_t pending() const noexcept { return consecutive_.pending() + skipping_.pending(); }
  // Returns the number of nodes in the trie, the start node included.
  std::size_t node_count() const noexcept { return consecutive_.node_count(); }
  // Return the position of the earliest event that a match under way needs, of conditions whose events are consecutive and of the
  // others; the largest number if none needs any.
  std::int64_t oldest_consecutive() const noexcept { return consecutive_.oldest_position(event_); }
  std::int64_t oldest_skipping() const noexcept { return skipping_.oldest_position(); }

 private:
  ConsecutiveMatcher consecutive_;
  SkippingMatcher skipping_;
  TriggeredTasks triggered_;
  std::size_t size_ = 0;
  std::uint64_t event_ = 0;  // number of the latest event
};

}  // namespace walle::stream
