#include "stream/skipping_matcher.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace walle::stream {

std::size_t SkippingMatcher::find(const Condition& condition, Id task) const noexcept {
  const Id first = condition.trigger_ids[0];
  if (first < uses_.size())
    for (const Use& use : uses_[first])
      if (pairs_[use.pair].task == task && pairs_[use.pair].condition == condition) return use.pair;
  return pairs_.size();
}

bool SkippingMatcher::add(const Condition& condition, Id task) {
  if (find(condition, task) != pairs_.size()) return false;
  const auto index = static_cast<std::uint32_t>(pairs_.size());
  const std::vector<Id> ids = required_ids(condition);
  Pair pair;
  pair.condition = condition;
  pair.ids = ids;
  pair.task = task;
  pair.starts.resize(ids.size());
  pairs_.push_back(std::move(pair));
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (ids[k] >= uses_.size()) uses_.resize(ids[k] + 1);
    std::vector<Use>& uses = uses_[ids[k]];
    if (uses.empty() || uses.back().pair != index) uses.push_back({index, 0});
    uses.back().places |= std::uint64_t{1} << k;
  }
  return true;
}

bool SkippingMatcher::remove(const Condition& condition, Id task) noexcept {
  const std::size_t removed = find(condition, task), last = pairs_.size() - 1;
  if (removed == pairs_.size()) return false;
  for (const Id id : pairs_[removed].ids) std::erase_if(uses_[id], [&](const Use& use) { return use.pair == removed; });
  if (removed != last) {  // the last pair takes its place
    for (const Id id : pairs_[last].ids)
      for (Use& use : uses_[id])
        if (use.pair == last) use.pair = static_cast<std::uint32_t>(removed);
    pairs_[removed] = std::move(pairs_[last]);
  }
  pairs_.pop_back();
  return true;
}

void SkippingMatcher::touch(Id id, std::uint64_t event) {
  if (id == kUnknown || id >= uses_.size()) return;
  for (const Use& use : uses_[id]) {
    Pair& pair = pairs_[use.pair];
    if (pair.event != event) {
      pair.event = event;
      pair.matched = 0;
      touched_.push_back(use.pair);
    }
    pair.matched |= use.places;
  }
}

void SkippingMatcher::advance(Pair& pair, Moment moment, TriggeredTasks& triggered) {
  const Condition& condition = pair.condition;
  const std::size_t last = pair.ids.size() - 1;
  std::uint64_t moving = pair.waiting & pair.matched;
  const bool ends = (moving >> last & 1) != 0 && triggered.passes(condition.predicate);
  moving &= ~(std::uint64_t{1} << last);
  pair.starts[0] = moment;
  if (ends) {
    if (triggered.in_time(condition, pair.starts[last].ts_ms, pair.latest)) triggered.add(pair.task, pair.latest);
    pair.waiting &= ~(std::uint64_t{1} << last);
  }
  pair.waiting &= ~moving;
  for (std::uint64_t left = moving; left != 0;) {  // backwards: a match may take the place of the one before it
    const auto k = static_cast<std::size_t>(63 - std::countl_zero(left));
    left &= ~(std::uint64_t{1} << k);
    const std::uint64_t next = std::uint64_t{1} << (k + 1);
    if ((pair.waiting & next) == 0 || pair.starts[k + 1].ts_ms <= pair.starts[k].ts_ms) pair.starts[k + 1] = pair.starts[k];
    pair.waiting |= next;
  }
  pair.waiting |= 1;
}

void SkippingMatcher::feed(Id event_id, Id page_id, Moment moment, std::uint64_t event, TriggeredTasks& triggered) {
  touched_.clear();
  touch(event_id, event);
  if (page_id != event_id) touch(page_id, event);
  touch(kWildcard, event);
  for (const std::uint32_t index : touched_) advance(pairs_[index], moment, triggered);
}

std::size_t SkippingMatcher::pending() const noexcept {
  return static_cast<std::size_t>(std::count_if(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.waiting > 1; }));
}

std::int64_t SkippingMatcher::oldest_position() const noexcept {
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max();
  for (const Pair& pair : pairs_)
    for (std::uint64_t left = pair.waiting & ~std::uint64_t{1}; left != 0; left &= left - 1)
      oldest = std::min(oldest, pair.starts[static_cast<std::size_t>(std::countr_zero(left))].position);
  return oldest;
}

}  // namespace walle::stream
