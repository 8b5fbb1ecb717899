// Groups of events by fields and by windows of time, and aggregations of a field in each group (§5.1).
#pragma once
#include <span>

#include "stream/event_batch.h"

namespace walle::stream {

// Rows of a batch, each in one of `count` groups, numbered in the order of `keys`. A row is in several groups of sliding windows.
struct EventGroups {
  struct Key {
    std::string name;
    Vector<Value> values;       // by group
    Vector<std::uint32_t> ids;  // the ids that the values are; empty for a field of the contents
  };
  std::shared_ptr<const EventBatch> batch;
  Vector<std::uint32_t> rows, groups;  // both have the same length
  std::uint32_t count = 0;
  std::vector<Key> keys;
};

// Returns one group of all rows; none of no rows.
EventGroups one_group(const EventRows& view);

// Splits each group by a field: groups stand in the order of their first event. Numbers are equal as in Python, but a bool is no
// number; a missing field is nil; every NaN is the same. Throws EventFault for a list, a map or an extension.
EventGroups group_by(const EventGroups& groups, std::string_view field);

enum class WindowKind : std::uint8_t { tumbling, sliding, session };

// Splits each group by windows of time, in the order of the groups and then of the windows' starts; windows without events do not
// exist. A window has start_ms <= ts_ms < end_ms.
//   tumbling: of `size_ms`, beginning at multiples of it after `offset_ms`.
//   sliding: of `size_ms`, beginning at multiples of `every_ms` after `offset_ms`.
//   session: events of which each is at most `size_ms` after the one before it in time; ends `size_ms` after the last.
// Throws EventFault for arguments that are wrong, or where an event would be in more than 1,000 windows.
EventGroups split_by_window(const EventGroups& groups, WindowKind kind, std::int64_t size_ms, std::int64_t every_ms,
                            std::int64_t offset_ms);

// The sum of a group's numbers as Python's `sum` has it: exact while they are integers, then compensated.
struct Total {
  __int128 whole = 0;
  double real = 0, compensation = 0;
  std::uint64_t count = 0;
  bool is_real = false;

  void add(const Value& number) noexcept;
  double as_real() const noexcept;
  // The sum by the count, which is not 0, as Python's `/` has it: integers are divided exactly, then rounded once.
  double mean() const noexcept;
};

// The aggregations of numbers ignore values of another kind; those of any value ignore missing ones and nil.
Vector<std::uint64_t> count_rows(const EventGroups& groups);
Vector<std::uint64_t> count_values(const EventGroups& groups, const Vector<Value>& values);
Vector<Total> sums(const EventGroups& groups, const Vector<Value>& values);
// The smallest, or with `largest` the largest, number of each group; the first of equal ones; missing without numbers.
Vector<Value> extremes(const EventGroups& groups, const Vector<Value>& values, bool largest);
Vector<Value> first_values(const EventGroups& groups, const Vector<Value>& values);
Vector<Value> last_values(const EventGroups& groups, const Vector<Value>& values);

// The same of one column.
std::size_t count_values(std::span<const Value> values) noexcept;
Total sum(std::span<const Value> values) noexcept;
Value extreme(std::span<const Value> values, bool largest) noexcept;
Value first_value(std::span<const Value> values) noexcept;
Value last_value(std::span<const Value> values) noexcept;

// Sum, standard deviation (of the population), quartiles and maximum of numbers, of which there is at least one; added in order.
struct Spread {
  Total total;
  double deviation;
  Value quartiles[4];  // the last one is the maximum
};
Spread spread_of(Vector<Value>& numbers);

// The standard deviation of each group's numbers (of the population); NaN without numbers.
Vector<double> deviations(const EventGroups& groups, const Vector<Value>& values);
// The number at index (n - 1) * part / parts of each group's n numbers in order; missing without numbers.
Vector<Value> quantiles(const EventGroups& groups, const Vector<Value>& values, std::uint32_t part, std::uint32_t parts);

}  // namespace walle::stream
