// Value types of trigger matching: ids, options of a condition, moments in the stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace walle::stream {

// The number that the caller gave to an event id, a page id or a task. Numbers are small: arrays are indexed by them.
using Id = std::uint32_t;
inline constexpr Id kUnknown = 0;   // id of an event that occurs in no condition
inline constexpr Id kWildcard = 1;  // id in a condition that matches any one event
inline constexpr Id kFirstId = 2;
inline constexpr std::size_t kMaxLength = 64;     // trigger ids of a condition: one bit each of a word
inline constexpr std::size_t kMaxSequences = 64;  // sequences that a condition with optional ids stands for

// Place of an event: its own time, and its position, which grows from event to event.
struct Moment {
  std::int64_t ts_ms = 0;
  std::int64_t position = 0;
};

struct Condition {
  std::vector<Id> trigger_ids;
  std::int64_t within_ms = 0;    // at most this from the first to the last event; 0: no bound
  std::int64_t cooldown_ms = 0;  // after it triggered, it does not again for this long; 0: no cool-down
  std::uint32_t predicate = 0;   // test of the last event's contents, by the caller's number; 0: none
  bool skip_till_next = false;   // other events may come between those that match
  std::uint32_t variant = 0;     // tells pairs apart that differ only in options which the caller applies
  // Bit k: trigger id k need not occur, which is not so of the first and the last one. A match begins at each event that matches
  // the first id, and ends where the first of the sequences with and without the optional ids is complete.
  std::uint64_t optional = 0;
  bool operator==(const Condition&) const = default;
};

// Returns the distinct sequences with and without the optional ids, at most kMaxSequences; none if there are more.
std::vector<std::vector<Id>> sequences_of(const Condition& condition);
// Returns the ids that are not optional: a subsequence of all other sequences, and the shortest.
std::vector<Id> required_ids(const Condition& condition);

// The caller's test of the current event's contents.
struct ContentsTest {
  bool (*call)(void* context, std::uint32_t predicate) = nullptr;
  void* context = nullptr;
};

}  // namespace walle::stream
