#include "stream/event_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace walle::stream {

namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMaxWindowsOfEvent = 1000;

std::uint64_t mix(std::uint64_t bits) noexcept {
  bits = (bits ^ bits >> 32) * 0x9fb21c651e98df25;
  bits = (bits ^ bits >> 29) * 0xff51afd7ed558ccd;
  return bits ^ bits >> 32;
}

// Numbers of distinct 64-bit keys in the order in which they come.
class Numbers {
 public:
  explicit Numbers(std::size_t likely) {
    std::size_t slots = 64;
    while (slots < likely && slots < 4096) slots *= 2;
    slots_.assign(slots, kNone);
  }
  std::uint32_t number_of(std::uint64_t key) {
    if (2 * (keys_.size() + 1) > slots_.size()) grow();
    std::uint32_t& slot = slots_[slot_of(key)];
    if (slot == kNone) {
      slot = static_cast<std::uint32_t>(keys_.size());
      keys_.push_back(key);
    }
    return slot;
  }
  const Vector<std::uint64_t>& keys() const noexcept { return keys_; }

 private:
  std::size_t slot_of(std::uint64_t key) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = mix(key) & mask;
    while (slots_[at] != kNone && keys_[slots_[at]] != key) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    slots_.assign(2 * slots_.size(), kNone);
    for (std::uint32_t i = 0; i < keys_.size(); ++i) slots_[slot_of(keys_[i])] = i;
  }
  Vector<std::uint64_t> keys_;
  Vector<std::uint32_t> slots_;
};

// Returns the value with one form for equal ones: integral reals as integers, one NaN, missing as nil.
Value normal(Value value) noexcept {
  if (value.kind == Kind::missing) value.kind = Kind::nil;
  if (value.kind == Kind::real) {
    if (std::isnan(value.real)) value.real = std::numeric_limits<double>::quiet_NaN();
    if (value.real >= -0x1p63 && value.real < 0x1p63 && value.real == std::trunc(value.real))
      return integer_value(static_cast<std::int64_t>(value.real));
    if (value.real >= 0x1p63 && value.real < 0x1p64) {
      value.kind = Kind::large;
      value.large = static_cast<std::uint64_t>(value.real);
    }
  }
  if (value.kind == Kind::nil) value.integer = 0;
  return value;
}

// Numbers of values that are distinct, by their normal form.
class ValueNumbers {
 public:
  explicit ValueNumbers(const EventBatch& batch) : batch_(batch) { slots_.assign(64, kNone); }

  std::uint32_t number_of(const Value& raw) {
    const Value value = normal(raw);
    if (2 * (values_.size() + 1) > slots_.size()) {
      slots_.assign(2 * slots_.size(), kNone);
      for (std::uint32_t i = 0; i < values_.size(); ++i) slots_[slot_of(values_[i])] = i;
    }
    std::uint32_t& slot = slots_[slot_of(value)];
    if (slot == kNone) {
      slot = static_cast<std::uint32_t>(values_.size());
      values_.push_back(value);
      firsts_.push_back(raw);
    }
    return slot;
  }
  const Value& first(std::uint32_t number) const noexcept { return firsts_[number]; }

 private:
  static bool has_bytes(const Value& value) noexcept { return value.kind == Kind::text || value.kind == Kind::binary; }
  std::uint64_t hash_of(const Value& value) const noexcept {
    const auto kind = static_cast<std::uint64_t>(value.kind);
    if (!has_bytes(value)) return mix(value.large + kind * 0x9e3779b97f4a7c15);
    return std::hash<std::string_view>{}(batch_.text(value)) + kind;
  }
  bool equal(const Value& a, const Value& b) const noexcept {
    if (a.kind != b.kind) return false;
    return has_bytes(a) ? batch_.text(a) == batch_.text(b) : a.large == b.large;
  }
  std::size_t slot_of(const Value& value) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash_of(value) & mask;
    while (slots_[at] != kNone && !equal(values_[slots_[at]], value)) at = (at + 1) & mask;
    return at;
  }

  const EventBatch& batch_;
  Vector<Value> values_, firsts_;
  Vector<std::uint32_t> slots_;
};

// Returns the groups that the pairs of old group and `part` make, in the order of their first row. `part_value` gives the key of
// a part.
template <typename PartValue>
EventGroups refine(const EventGroups& groups, const Vector<std::uint32_t>& parts, std::uint32_t part_count, std::string_view name,
                   PartValue part_value) {
  EventGroups made;
  made.batch = groups.batch;
  made.rows = groups.rows;
  made.groups.resize(groups.rows.size());
  Vector<std::uint32_t> old_of, part_of;  // by new group
  const std::uint64_t pairs = std::uint64_t{groups.count} * part_count;
  const auto add = [&](std::uint32_t old, std::uint32_t part) {
    old_of.push_back(old);
    part_of.push_back(part);
    return static_cast<std::uint32_t>(old_of.size() - 1);
  };
  if (pairs <= 4 * groups.rows.size() + 1024) {  // a table
    Vector<std::uint32_t> table;
    table.assign(pairs, kNone);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::uint32_t& slot = table[std::size_t{groups.groups[i]} * part_count + parts[i]];
      if (slot == kNone) slot = add(groups.groups[i], parts[i]);
      made.groups[i] = slot;
    }
  } else {
    Numbers numbers(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      made.groups[i] = numbers.number_of(std::uint64_t{groups.groups[i]} << 32 | parts[i]);
      if (made.groups[i] == old_of.size()) add(groups.groups[i], parts[i]);
    }
  }
  made.count = static_cast<std::uint32_t>(old_of.size());
  for (const EventGroups::Key& key : groups.keys) {
    EventGroups::Key& copy = made.keys.emplace_back(
        EventGroups::Key{key.name, Vector<Value>(made.count), Vector<std::uint32_t>(key.ids.empty() ? 0 : made.count)});
    for (std::uint32_t i = 0; i < made.count; ++i) copy.values[i] = key.values[old_of[i]];
    for (std::uint32_t i = 0; i < copy.ids.size(); ++i) copy.ids[i] = key.ids[old_of[i]];
  }
  EventGroups::Key& key = made.keys.emplace_back(EventGroups::Key{std::string(name), Vector<Value>(made.count), {}});
  for (std::uint32_t i = 0; i < made.count; ++i) key.values[i] = part_value(part_of[i]);
  return made;
}

bool comes_before(const Value& a, const Value& b) noexcept {  // NaN last
  const bool a_is_nan = a.kind == Kind::real && std::isnan(a.real), b_is_nan = b.kind == Kind::real && std::isnan(b.real);
  if (a_is_nan || b_is_nan) return !a_is_nan;
  return compare_numbers(a, b) < 0;
}

// Returns whether the value is a number that is smaller, or with `largest` larger, than `best`, which may be missing.
bool is_beyond(const Value& value, const Value& best, bool largest) noexcept {
  if (!value.is_number()) return false;
  if (value.kind == Kind::integer && best.kind == Kind::integer)
    return largest ? value.integer > best.integer : value.integer < best.integer;
  return best.kind == Kind::missing || compare_numbers(value, best) == (largest ? 1 : -1);
}

double as_real(const Value& number) noexcept {
  if (number.kind == Kind::real) return number.real;
  return number.kind == Kind::large ? static_cast<double>(number.large) : static_cast<double>(number.integer);
}

// Returns the start of the last window that begins at or before `ts_ms`.
std::int64_t window_start(std::int64_t ts_ms, std::int64_t every_ms, std::int64_t offset_ms) noexcept {
  const std::int64_t over = (ts_ms - offset_ms) % every_ms;
  return ts_ms - (over < 0 ? over + every_ms : over);
}

}  // namespace

EventGroups one_group(const EventRows& view) {
  EventGroups groups;
  groups.batch = view.batch;
  groups.rows = view.rows;
  groups.groups.assign(view.rows.size(), 0);
  groups.count = view.rows.empty() ? 0 : 1;
  return groups;
}

EventGroups group_by(const EventGroups& groups, std::string_view field) {
  const FieldPath path(field);
  const EventBatch& batch = *groups.batch;
  Vector<std::uint32_t> parts(groups.rows.size());
  if (path.source() == FieldPath::Source::event_id || path.source() == FieldPath::Source::page_id) {
    const std::uint32_t* ids = path.source() == FieldPath::Source::event_id ? batch.event_ids() : batch.page_ids();
    Vector<std::uint32_t> numbers, found;  // parts by id, and back: the parts of a batch are few, its ids may be many
    numbers.assign(batch.id_count(), kNone);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::uint32_t& number = numbers[ids[groups.rows[i]]];
      if (number == kNone) {
        number = static_cast<std::uint32_t>(found.size());
        found.push_back(ids[groups.rows[i]]);
      }
      parts[i] = number;
    }
    Vector<std::uint32_t> key_ids;
    EventGroups made = refine(groups, parts, static_cast<std::uint32_t>(found.size()), field, [&](std::uint32_t part) {
      key_ids.push_back(found[part]);
      return batch.id_value(found[part]);
    });
    made.keys.back().ids = std::move(key_ids);
    return made;
  }
  const Vector<Value> values = batch.fields(groups.rows, path, field);
  ValueNumbers numbers(batch);
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (values[i].kind == Kind::list || values[i].kind == Kind::map || values[i].kind == Kind::extension)
      throw EventFault{std::string(field), "of event " + std::to_string(groups.rows[i]) +
                                               " is a list or an object, by which events cannot be grouped"};
    parts[i] = numbers.number_of(values[i]);
    count = std::max(count, parts[i] + 1);
  }
  return refine(groups, parts, count, field, [&](std::uint32_t part) { return numbers.first(part); });
}

EventGroups split_by_window(const EventGroups& groups, WindowKind kind, std::int64_t size_ms, std::int64_t every_ms,
                            std::int64_t offset_ms) {
  if (size_ms <= 0 || size_ms > kMaxTimeMs) throw EventFault{"window", "must be longer than 0 ms, and not than 2^53"};
  if (kind == WindowKind::sliding && (every_ms <= 0 || every_ms > size_ms))
    throw EventFault{"window", "every_ms must be above 0, and not above size_ms"};
  if (kind == WindowKind::sliding && size_ms / every_ms > kMaxWindowsOfEvent)
    throw EventFault{"window", "an event would be in more than 1000 windows; make every_ms larger"};
  if (offset_ms < -kMaxTimeMs || offset_ms > kMaxTimeMs) throw EventFault{"window", "offset_ms is beyond 2^53"};
  struct Member {
    std::uint32_t group, row;
    std::int64_t start_ms;
  };
  const EventBatch& batch = *groups.batch;
  Vector<Member> members;
  members.reserve(groups.rows.size());
  for (std::size_t i = 0; i < groups.rows.size(); ++i) {
    const std::int64_t ts_ms = batch.ts_ms(groups.rows[i]);
    if (kind == WindowKind::session) {
      members.push_back({groups.groups[i], groups.rows[i], ts_ms});
      continue;
    }
    const std::int64_t step = kind == WindowKind::tumbling ? size_ms : every_ms;
    for (std::int64_t start = window_start(ts_ms, step, offset_ms); start > ts_ms - size_ms; start -= step)
      members.push_back({groups.groups[i], groups.rows[i], start});
  }
  std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return a.group != b.group ? a.group < b.group : a.start_ms < b.start_ms;
  });
  EventGroups made;
  made.batch = groups.batch;
  made.rows.resize(members.size());
  made.groups.resize(members.size());
  Vector<std::uint32_t> old_of;
  Vector<std::int64_t> starts, ends;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    const bool is_same = i != 0 && members[i - 1].group == member.group &&
                         (kind == WindowKind::session ? member.start_ms - members[i - 1].start_ms <= size_ms
                                                      : member.start_ms == members[i - 1].start_ms);
    if (!is_same) {
      old_of.push_back(member.group);
      starts.push_back(member.start_ms);
      ends.push_back(0);
    }
    ends.back() = member.start_ms + size_ms;
    made.rows[i] = member.row;
    made.groups[i] = static_cast<std::uint32_t>(old_of.size() - 1);
  }
  made.count = static_cast<std::uint32_t>(old_of.size());
  for (const EventGroups::Key& key : groups.keys) {
    EventGroups::Key& copy = made.keys.emplace_back(
        EventGroups::Key{key.name, Vector<Value>(made.count), Vector<std::uint32_t>(key.ids.empty() ? 0 : made.count)});
    for (std::uint32_t i = 0; i < made.count; ++i) copy.values[i] = key.values[old_of[i]];
    for (std::uint32_t i = 0; i < copy.ids.size(); ++i) copy.ids[i] = key.ids[old_of[i]];
  }
  for (const auto& [name, column] : {std::pair{"start_ms", &starts}, std::pair{"end_ms", &ends}}) {
    EventGroups::Key& key = made.keys.emplace_back(EventGroups::Key{name, Vector<Value>(made.count), {}});
    for (std::uint32_t i = 0; i < made.count; ++i) key.values[i] = integer_value((*column)[i]);
  }
  return made;
}

void Total::add(const Value& number) noexcept {
  ++count;
  if (number.kind != Kind::real) {
    if (is_real)
      real += walle::stream::as_real(number);
    else
      whole += number.kind == Kind::large ? static_cast<__int128>(number.large) : static_cast<__int128>(number.integer);
    return;
  }
  if (!is_real) {
    is_real = true;
    real = static_cast<double>(whole) + number.real;
    return;
  }
  const double sum = real + number.real;
  if (std::fabs(real) >= std::fabs(number.real))
    compensation += (real - sum) + number.real;
  else
    compensation += (number.real - sum) + real;
  real = sum;
}

double Total::as_real() const noexcept {
  if (!is_real) return static_cast<double>(whole);
  return compensation != 0 && std::isfinite(compensation) ? real + compensation : real;
}

double Total::mean() const noexcept {
  constexpr __int128 kExact = __int128{1} << 53;
  if (is_real || (whole <= kExact && whole >= -kExact)) return as_real() / static_cast<double>(count);
  auto size = static_cast<unsigned __int128>(whole < 0 ? -whole : whole);
  int shift = 0;  // a quotient of more than 60 bits, of which the last one says that a rest was left, rounds correctly
  for (; size >> 125 == 0; size <<= 1) ++shift;
  const unsigned __int128 quotient = size / count | (size % count != 0 ? 1 : 0);
  const double found = std::ldexp(static_cast<double>(quotient), -shift);
  return whole < 0 ? -found : found;
}

Vector<std::uint64_t> count_rows(const EventGroups& groups) {
  Vector<std::uint64_t> counts;
  counts.assign(groups.count, 0);
  for (const std::uint32_t group : groups.groups) ++counts[group];
  return counts;
}

Vector<std::uint64_t> count_values(const EventGroups& groups, const Vector<Value>& values) {
  Vector<std::uint64_t> counts;
  counts.assign(groups.count, 0);
  for (std::size_t i = 0; i < values.size(); ++i) counts[groups.groups[i]] += values[i].is_present() ? 1 : 0;
  return counts;
}

Vector<Total> sums(const EventGroups& groups, const Vector<Value>& values) {
  Vector<Total> totals;
  totals.assign(groups.count, Total{});
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i].is_number()) totals[groups.groups[i]].add(values[i]);
  return totals;
}

Vector<Value> extremes(const EventGroups& groups, const Vector<Value>& values, bool largest) {
  Vector<Value> found;
  found.assign(groups.count, Value{});
  for (std::size_t i = 0; i < values.size(); ++i)
    if (is_beyond(values[i], found[groups.groups[i]], largest)) found[groups.groups[i]] = values[i];
  return found;
}

Vector<Value> first_values(const EventGroups& groups, const Vector<Value>& values) {
  Vector<Value> found;
  found.assign(groups.count, Value{});
  for (std::size_t i = 0; i < values.size(); ++i)
    if (Value& first = found[groups.groups[i]]; first.kind == Kind::missing && values[i].is_present()) first = values[i];
  return found;
}

Vector<Value> last_values(const EventGroups& groups, const Vector<Value>& values) {
  Vector<Value> found;
  found.assign(groups.count, Value{});
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i].is_present()) found[groups.groups[i]] = values[i];
  return found;
}

std::size_t count_values(std::span<const Value> values) noexcept {
  return static_cast<std::size_t>(std::count_if(values.begin(), values.end(), [](const Value& one) { return one.is_present(); }));
}

Total sum(std::span<const Value> values) noexcept {
  Total total;
  for (const Value& value : values)
    if (value.is_number()) total.add(value);
  return total;
}

Value extreme(std::span<const Value> values, bool largest) noexcept {
  Value found;
  for (const Value& value : values)
    if (is_beyond(value, found, largest)) found = value;
  return found;
}

Value first_value(std::span<const Value> values) noexcept {
  for (const Value& value : values)
    if (value.is_present()) return value;
  return {};
}

Value last_value(std::span<const Value> values) noexcept {
  for (std::size_t i = values.size(); i-- > 0;)
    if (values[i].is_present()) return values[i];
  return {};
}

Spread spread_of(Vector<Value>& numbers) {
  const auto all_are = [&](auto test) { return std::all_of(numbers.begin(), numbers.end(), test); };
  const auto sort_few = [&](auto before) {  // stable without extra memory
    for (std::size_t i = 1; i < numbers.size(); ++i) {
      const Value moved = numbers[i];
      std::size_t place = i;
      for (; place != 0 && before(moved, numbers[place - 1]); --place) numbers[place] = numbers[place - 1];
      numbers[place] = moved;
    }
  };
  if (numbers.size() <= 32 && all_are([](const Value& one) { return one.kind == Kind::integer; }))
    sort_few([](const Value& a, const Value& b) { return a.integer < b.integer; });
  else if (numbers.size() <= 32 && all_are([](const Value& one) { return one.kind == Kind::real && !std::isnan(one.real); }))
    sort_few([](const Value& a, const Value& b) { return a.real < b.real; });
  else
    std::stable_sort(numbers.begin(), numbers.end(), comes_before);
  Spread spread{};
  for (const Value& number : numbers) spread.total.add(number);
  const double mean = spread.total.mean();
  Total squares;
  for (const Value& number : numbers) {
    Value square;
    square.kind = Kind::real;
    square.real = (as_real(number) - mean) * (as_real(number) - mean);
    squares.add(square);
  }
  spread.deviation = std::sqrt(squares.as_real() / static_cast<double>(numbers.size()));
  for (std::size_t part = 1; part <= 4; ++part) spread.quartiles[part - 1] = numbers[(numbers.size() - 1) * part / 4];
  return spread;
}

Vector<double> deviations(const EventGroups& groups, const Vector<Value>& values) {
  const Vector<Total> totals = sums(groups, values);
  Vector<Total> squares;
  squares.assign(groups.count, Total{});
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_number()) continue;
    const Total& total = totals[groups.groups[i]];
    Value square;
    square.kind = Kind::real;
    const double over = as_real(values[i]) - total.mean();
    square.real = over * over;
    squares[groups.groups[i]].add(square);
  }
  Vector<double> found(groups.count);
  for (std::uint32_t i = 0; i < groups.count; ++i)
    found[i] = std::sqrt(squares[i].as_real() / static_cast<double>(squares[i].count));
  return found;
}

Vector<Value> quantiles(const EventGroups& groups, const Vector<Value>& values, std::uint32_t part, std::uint32_t parts) {
  Vector<std::uint32_t> order;
  order.reserve(values.size());
  for (std::uint32_t i = 0; i < values.size(); ++i)
    if (values[i].is_number()) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (groups.groups[a] != groups.groups[b]) return groups.groups[a] < groups.groups[b];
    if (comes_before(values[a], values[b])) return true;
    return !comes_before(values[b], values[a]) && a < b;
  });
  Vector<Value> found;
  found.assign(groups.count, Value{});
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && groups.groups[order[end]] == groups.groups[order[begin]]) ++end;
    found[groups.groups[order[begin]]] = values[order[begin + (end - begin - 1) * part / parts]];
    begin = end;
  }
  return found;
}

}  // namespace walle::stream
