// Matcher of the conditions between whose events others may come (skip till next).
#pragma once
#include "stream/condition.h"
#include "stream/triggered_tasks.h"

namespace walle::stream {

// A match starts at each event that matches the first trigger id, stays where it is until an event matches the next one, and
// then moves to it. Matches that wait for the same trigger id continue together from there, so that the one whose first event
// has the latest time stands for all of them: a word with one bit per trigger id is the state of a condition.
//
// Optional ids are not matched. The ids that must occur are a subsequence of each other sequence, so that from any first event on
// they are complete first, or at the same event, and that ends the match.
class SkippingMatcher {
 public:
  // As of ConsecutiveMatcher.
  bool add(const Condition& condition, Id task);
  bool remove(const Condition& condition, Id task) noexcept;
  void feed(Id event_id, Id page_id, Moment moment, std::uint64_t event, TriggeredTasks& triggered);

  std::size_t size() const noexcept { return pairs_.size(); }
  // Returns the number of conditions with a match under way.
  std::size_t pending() const noexcept;
  std::int64_t oldest_position() const noexcept;

 private:
  struct Pair {
    Condition condition;
    std::vector<Id> ids;  // ids that must occur
    Id task = 0;
    std::uint64_t waiting = 1;   // bit k: a match waits for trigger id k; a new match always waits for the first
    std::vector<Moment> starts;  // by k: the first event of the match that waits for trigger id k
    LatestTrigger latest;
    std::uint64_t event = 0;    // the event of `matched`
    std::uint64_t matched = 0;  // bit k: the event matches trigger id k
  };
  struct Use {
    std::uint32_t pair = 0;
    std::uint64_t places = 0;  // bit k: trigger id k of the pair is this id
  };

  std::size_t find(const Condition& condition, Id task) const noexcept;
  void touch(Id id, std::uint64_t event);
  void advance(Pair& pair, Moment moment, TriggeredTasks& triggered);

  std::vector<Pair> pairs_;
  std::vector<std::vector<Use>> uses_;  // by id
  std::vector<std::uint32_t> touched_;  // pairs that the event may advance
};

}  // namespace walle::stream
