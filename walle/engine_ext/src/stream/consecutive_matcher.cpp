#include "stream/consecutive_matcher.h"

#include <algorithm>

namespace walle::stream {

namespace {

// Returns the index of a new element, which takes a free place if there is one.
template <typename T>
std::uint32_t place(std::vector<T>& elements, std::vector<std::uint32_t>& free) {
  if (free.empty()) {
    free.reserve(elements.size() + 1);  // so that removal never allocates
    elements.emplace_back();
    return static_cast<std::uint32_t>(elements.size() - 1);
  }
  const std::uint32_t index = free.back();
  free.pop_back();
  elements[index] = T();
  return index;
}

bool has_options(const Condition& condition) {
  return condition.within_ms != 0 || condition.cooldown_ms != 0 || condition.predicate != 0;
}

}  // namespace

ConsecutiveMatcher::ConsecutiveMatcher() : nodes_(1), latest_{} {}

std::uint32_t ConsecutiveMatcher::child(std::uint32_t node, Id id) const noexcept {
  if (id == kWildcard) return nodes_[node].wildcard_child;
  if (node == 0) return id < start_children_.size() ? start_children_[id] : 0;
  return edges_.find(edge(node, id));
}

std::uint32_t ConsecutiveMatcher::add_child(std::uint32_t node, Id id) {
  if (node == 0 && id != kWildcard && id >= start_children_.size()) start_children_.resize(id + 1);
  const std::uint32_t added = place(nodes_, free_nodes_);
  nodes_[added].depth = nodes_[node].depth + 1;
  if (id != kWildcard && node != 0) edges_.insert(edge(node, id), added);
  Node& parent = nodes_[node];
  const bool only = ++parent.children == 1 && id != kWildcard;
  parent.only_id = only ? id : kUnknown;
  parent.only_child = only ? added : 0;
  if (id == kWildcard) {
    parent.wildcard_child = added;
    return added;
  }
  if (node == 0) start_children_[id] = added;
  parent.filter |= std::uint64_t{1} << (id & 63);
  return added;
}

void ConsecutiveMatcher::remove_child(std::uint32_t node, Id id) noexcept {
  const std::uint32_t removed = child(node, id);
  Node& parent = nodes_[node];
  if (id == kWildcard)
    parent.wildcard_child = 0;
  else if (node == 0)
    start_children_[id] = 0;
  else
    edges_.erase(edge(node, id));
  parent.only_id = kUnknown;
  if (--parent.children == (parent.wildcard_child != 0 ? 1 : 0)) parent.filter = 0;
  free_nodes_.push_back(removed);
  // A new node may take the place of the removed one, and must not be pending.
  std::erase(pending_, removed);
  if (parent.children == 0) std::erase(pending_, node);
}

bool ConsecutiveMatcher::same_options(const End& end, const Condition& condition) const noexcept {
  if (end.options == kNone) return !has_options(condition);
  const Condition& options = options_[end.options];
  return options.within_ms == condition.within_ms && options.cooldown_ms == condition.cooldown_ms &&
         options.predicate == condition.predicate;
}

bool ConsecutiveMatcher::add(const Condition& condition, Id task, std::uint64_t next_event) {
  std::uint32_t node = 0;
  for (const Id id : condition.trigger_ids) {
    const std::uint32_t found = child(node, id);
    node = found != 0 ? found : add_child(node, id);
  }
  for (std::uint32_t at = nodes_[node].first_end; at != kNone; at = ends_[at].next)
    if (ends_[at].task == task && same_options(ends_[at], condition)) return false;
  const std::uint32_t added = place(ends_, free_ends_);
  End& end = ends_[added];
  end.task = task;
  end.first_event = next_event + condition.trigger_ids.size() - 1;
  if (has_options(condition)) {
    end.options = place(options_, free_options_);
    options_[end.options] = condition;
    options_[end.options].trigger_ids.clear();
  }
  end.next = nodes_[node].first_end;
  nodes_[node].first_end = added;
  return true;
}

bool ConsecutiveMatcher::remove(const Condition& condition, Id task) noexcept {
  std::array<std::uint32_t, kMaxLength + 1> path{};
  const std::size_t length = condition.trigger_ids.size();
  for (std::size_t i = 0; i < length; ++i) {
    path[i + 1] = child(path[i], condition.trigger_ids[i]);
    if (path[i + 1] == 0) return false;
  }
  std::uint32_t* link = &nodes_[path[length]].first_end;
  while (*link != kNone && !(ends_[*link].task == task && same_options(ends_[*link], condition))) link = &ends_[*link].next;
  if (*link == kNone) return false;
  const std::uint32_t removed = *link;
  *link = ends_[removed].next;
  if (ends_[removed].options != kNone) free_options_.push_back(ends_[removed].options);
  free_ends_.push_back(removed);
  for (std::size_t i = length; i > 0; --i) {
    const Node& node = nodes_[path[i]];
    if (node.children != 0 || node.first_end != kNone) break;
    remove_child(path[i - 1], condition.trigger_ids[i - 1]);
  }
  return true;
}

void ConsecutiveMatcher::match(std::uint32_t index, Moment moment, std::uint64_t event, TriggeredTasks& triggered) {
  const Node& node = nodes_[index];
  for (std::uint32_t at = node.first_end; at != kNone; at = ends_[at].next) {
    const End& end = ends_[at];
    if (event < end.first_event) continue;
    if (end.options == kNone) {
      triggered.add(end.task);
      continue;
    }
    const Condition& options = options_[end.options];
    const Moment first = latest_[(event - node.depth + 1) % kMaxLength];
    if (options.within_ms != 0 && moment.ts_ms - first.ts_ms > options.within_ms) continue;
    if (triggered.would_add(end.task, options) && triggered.passes(options.predicate)) triggered.add(end.task);
  }
  if (node.children != 0) matched_.push_back(index);
}

void ConsecutiveMatcher::feed(Id event_id, Id page_id, Moment moment, std::uint64_t event, TriggeredTasks& triggered) {
  latest_[event % kMaxLength] = moment;
  matched_.clear();
  const Id second_id = page_id == event_id ? kUnknown : page_id;
  for (const Id id : {event_id, second_id})
    if (id != kUnknown && id < start_children_.size() && start_children_[id] != 0)
      match(start_children_[id], moment, event, triggered);
  if (nodes_[0].wildcard_child != 0) match(nodes_[0].wildcard_child, moment, event, triggered);
  for (const std::uint32_t index : pending_) {
    const Node& node = nodes_[index];
    if (node.wildcard_child != 0) match(node.wildcard_child, moment, event, triggered);
    for (const Id id : {event_id, second_id}) {
      if (id == kUnknown) continue;
      if (node.only_id != kUnknown) {
        if (node.only_id == id) match(node.only_child, moment, event, triggered);
      } else if ((node.filter >> (id & 63) & 1) != 0) {
        const std::uint32_t found = edges_.find(edge(index, id));
        if (found != 0) match(found, moment, event, triggered);
      }
    }
  }
  std::swap(pending_, matched_);
}

std::int64_t ConsecutiveMatcher::oldest_position(std::uint64_t event) const noexcept {
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max();
  for (const std::uint32_t index : pending_)
    oldest = std::min(oldest, latest_[(event - nodes_[index].depth + 1) % kMaxLength].position);
  return oldest;
}

}  // namespace walle::stream
