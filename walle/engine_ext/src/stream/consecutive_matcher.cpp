#include "stream/consecutive_matcher.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

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

void prefetch(const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#endif
}

bool has_options(const Condition& condition) {
  return condition.within_ms != 0 || condition.cooldown_ms != 0 || condition.predicate != 0 || condition.variant != 0;
}

}  // namespace

ConsecutiveMatcher::ConsecutiveMatcher() : nodes_(1), latest_{} {}

std::uint32_t ConsecutiveMatcher::named_child(std::uint32_t index, const Node& node, Id id) const noexcept {
  const ChildSlot slot = slots_[node.slot(id)];
  if (node.overflows && slot.id != id) return overflow_.find(edge(index, id));
  return slot.id == id ? slot.child : 0;
}

std::uint32_t ConsecutiveMatcher::child(std::uint32_t node, Id id) const noexcept {
  if (id == kWildcard) return nodes_[node].wildcard_child;
  if (node == 0) return id < start_children_.size() ? start_children_[id] : 0;
  return named_child(node, nodes_[node], id);
}

void ConsecutiveMatcher::add_slot(std::uint32_t index, Id id, std::uint32_t child) {
  Node& node = nodes_[index];
  if (node.first_slot == 0) node.first_slot = slots_.allocate(0);
  const unsigned slots = 1u << node.log2_slots;
  const unsigned most = std::max(256u, 8 * std::bit_ceil(node.named_children));
  unsigned log2 = node.log2_slots;
  const auto shares_slot = [&] {
    const Id mask = (1u << log2) - 1;
    for (std::uint32_t i = 0; i < slots; ++i) {
      const ChildSlot& slot = slots_[node.first_slot + i];
      if (slot.id != kUnknown && (slot.id & mask) == (id & mask)) return true;
    }
    return false;
  };
  while (shares_slot()) {  // no two of the others share one: they do not with fewer slots
    if (1u << ++log2 <= most) continue;
    overflow_.insert(edge(index, id), child);
    node.overflows = true;
    return;
  }
  if (log2 != node.log2_slots) {
    const std::uint32_t old_first = node.first_slot, old_log2 = node.log2_slots;
    node.first_slot = slots_.allocate(log2);
    node.log2_slots = static_cast<std::uint8_t>(log2);
    for (std::uint32_t i = 0; i < slots; ++i) {
      const ChildSlot slot = slots_[old_first + i];
      if (slot.id != kUnknown) slots_[node.slot(slot.id)] = slot;
    }
    slots_.release(old_first, old_log2);
  }
  slots_[node.slot(id)] = {id, child};
}

std::uint32_t ConsecutiveMatcher::add_child(std::uint32_t node, Id id) {
  if (node == 0 && id != kWildcard && id >= start_children_.size()) start_children_.resize(id + 1);
  const std::uint32_t added = place(nodes_, free_nodes_);
  ++added_nodes_;
  nodes_[added].depth = static_cast<std::uint8_t>(nodes_[node].depth + 1);
  if (id == kWildcard) {
    nodes_[node].wildcard_child = added;
    return added;
  }
  if (node == 0)
    start_children_[id] = added;
  else
    add_slot(node, id, added);
  ++nodes_[node].named_children;
  return added;
}

void ConsecutiveMatcher::remove_child(std::uint32_t node, Id id) noexcept {
  const std::uint32_t removed = child(node, id);
  Node& parent = nodes_[node];
  if (id == kWildcard) {
    parent.wildcard_child = 0;
  } else {
    --parent.named_children;
    ChildSlot& slot = slots_[parent.slot(id)];
    if (node == 0)
      start_children_[id] = 0;
    else if (slot.id == id)
      slot = {};
    else
      overflow_.erase(edge(node, id));
    if (node != 0 && parent.named_children == 0) {
      slots_.release(parent.first_slot, parent.log2_slots);
      parent.first_slot = parent.log2_slots = 0;
      parent.overflows = false;
    }
  }
  free_nodes_.push_back(removed);
  // A new node may take the place of the removed one, and must not be pending.
  std::erase(pending_, removed);
  if (!parent.has_children()) std::erase(pending_, node);
}

// Sorts nodes and slots by depth. Most events reach the first few levels only; these are then close in memory. 10,000 conditions
// match in about 6/7 of the time.
void ConsecutiveMatcher::pack() {
  added_nodes_ = 0;
  constexpr std::uint32_t kFree = kNone;
  std::vector<std::uint32_t> place_of(nodes_.size());
  for (const std::uint32_t node : free_nodes_) place_of[node] = kFree;
  std::array<std::uint32_t, kMaxLength + 2> start{};  // of each depth
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (place_of[i] != kFree) ++start[nodes_[i].depth + 1u];
  for (std::size_t depth = 1; depth < start.size(); ++depth) start[depth] += start[depth - 1];
  std::vector<std::uint32_t> order(start.back());
  for (std::uint32_t i = 0; i < nodes_.size(); ++i)
    if (place_of[i] != kFree) order[place_of[i] = start[nodes_[i].depth]++] = i;
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  ChildSlots slots;
  for (const std::uint32_t old : order) {
    Node node = nodes_[old];
    if (node.wildcard_child != 0) node.wildcard_child = place_of[node.wildcard_child];
    if (node.first_slot != 0) {
      node.first_slot = slots.allocate(node.log2_slots);
      for (std::uint32_t i = 0; i < 1u << node.log2_slots; ++i) {
        const ChildSlot slot = slots_[nodes_[old].first_slot + i];
        if (slot.id != kUnknown) slots[node.first_slot + i] = {slot.id, place_of[slot.child]};
      }
    }
    nodes.push_back(node);
  }
  FlatMap overflow;
  overflow_.for_each([&](std::uint64_t key, std::uint32_t child) {
    overflow.insert(edge(place_of[key >> 32], static_cast<Id>(key)), place_of[child]);
  });
  for (std::uint32_t& child : start_children_) child = child == 0 ? 0 : place_of[child];
  for (std::uint32_t& node : pending_) node = place_of[node];
  nodes_ = std::move(nodes);
  slots_ = std::move(slots);
  overflow_ = std::move(overflow);
  free_nodes_.clear();
  free_nodes_.reserve(nodes_.size());
}

bool ConsecutiveMatcher::same_options(const End& end, const Condition& condition) const noexcept {
  if (end.options == kNone) return !has_options(condition);
  const Condition& options = options_[end.options].condition;
  return options.within_ms == condition.within_ms && options.cooldown_ms == condition.cooldown_ms &&
         options.predicate == condition.predicate && options.variant == condition.variant;
}

bool ConsecutiveMatcher::add(const Condition& condition, Id task, std::uint64_t next_event) {
  std::uint32_t node = 0;
  for (const Id id : condition.trigger_ids) {
    const std::uint32_t found = child(node, id);
    node = found != 0 ? found : add_child(node, id);
  }
  const std::uint64_t first_event = next_event + condition.trigger_ids.size() - 1;
  if (!has_options(condition)) {
    if (nodes_[node].task == task) return false;
    if (nodes_[node].task == 0) {
      // The list may hold the pair, from before the node's own was removed.
      if (find_end(node, condition, task) != kNone) return false;
      nodes_[node].task = task;
      nodes_[node].first_event = first_event;
      return true;
    }
  }
  if (find_end(node, condition, task) != kNone) return false;
  const std::uint32_t added = place(ends_, free_ends_);
  End& end = ends_[added];
  end.task = task;
  end.first_event = first_event;
  if (has_options(condition)) {
    end.options = place(options_, free_options_);
    Condition& options = options_[end.options].condition;
    options = condition;
    options.trigger_ids.clear();
  }
  end.next = nodes_[node].first_end;
  nodes_[node].first_end = added;
  return true;
}

std::uint32_t ConsecutiveMatcher::find_end(std::uint32_t node, const Condition& condition, Id task) const noexcept {
  std::uint32_t at = nodes_[node].first_end;
  while (at != kNone && !(ends_[at].task == task && same_options(ends_[at], condition))) at = ends_[at].next;
  return at;
}

bool ConsecutiveMatcher::remove(const Condition& condition, Id task) noexcept {
  std::array<std::uint32_t, kMaxLength + 1> path{};
  const std::size_t length = condition.trigger_ids.size();
  for (std::size_t i = 0; i < length; ++i) {
    path[i + 1] = child(path[i], condition.trigger_ids[i]);
    if (path[i + 1] == 0) return false;
  }
  Node& last = nodes_[path[length]];
  if (last.task == task && !has_options(condition)) {
    last.task = 0;
  } else {
    const std::uint32_t removed = find_end(path[length], condition, task);
    if (removed == kNone) return false;
    std::uint32_t* link = &last.first_end;
    while (*link != removed) link = &ends_[*link].next;
    *link = ends_[removed].next;
    if (ends_[removed].options != kNone) free_options_.push_back(ends_[removed].options);
    free_ends_.push_back(removed);
  }
  for (std::size_t i = length; i > 0; --i) {
    const Node& node = nodes_[path[i]];
    if (node.has_children() || node.has_ends()) break;
    remove_child(path[i - 1], condition.trigger_ids[i - 1]);
  }
  return true;
}

void ConsecutiveMatcher::trigger(const Node& node, std::uint64_t event, TriggeredTasks& triggered) {
  if (node.task != 0 && event >= node.first_event) triggered.add(node.task);
  for (std::uint32_t at = node.first_end; at != kNone; at = ends_[at].next) {
    const End& end = ends_[at];
    if (event < end.first_event) continue;
    if (end.options == kNone) {
      triggered.add(end.task);
      continue;
    }
    Options& options = options_[end.options];
    const Moment first = latest_[(event - node.depth + 1) % kMaxLength];
    if (triggered.in_time(options.condition, first.ts_ms, options.latest) && triggered.passes(options.condition.predicate))
      triggered.add(end.task, options.latest);
  }
}

void ConsecutiveMatcher::feed(Id event_id, Id page_id, Moment moment, std::uint64_t event, TriggeredTasks& triggered) {
  latest_[event % kMaxLength] = moment;
  if (added_nodes_ > 256 && 2 * added_nodes_ > nodes_.size()) pack();
  if (matched_.size() < 3 * pending_.size() + 3) matched_.resize(3 * pending_.size() + 3);
  std::uint32_t* end = matched_.data();
  const auto match = [&](std::uint32_t node) {  // without a branch: which nodes match cannot be predicted
    *end = node;
    end += node != 0 ? 1 : 0;
  };
  const Id second_id = page_id == event_id ? kUnknown : page_id;
  match(nodes_[0].wildcard_child);
  match(child(0, event_id));
  match(child(0, second_id));
  for (const std::uint32_t index : pending_) {
    const Node& node = nodes_[index];
    match(node.wildcard_child);
    match(named_child(index, node, event_id));
    match(named_child(index, node, second_id));
  }
  const std::span<const std::uint32_t> matched(matched_.data(), end);
  for (const std::uint32_t index : matched) prefetch(&nodes_[index]);  // spread over memory: all are asked for first
  pending_.resize(matched.size());
  end = pending_.data();
  for (const std::uint32_t index : matched) {
    *end = index;
    end += nodes_[index].has_children() ? 1 : 0;
    if (nodes_[index].has_ends()) trigger(nodes_[index], event, triggered);
  }
  pending_.resize(static_cast<std::size_t>(end - pending_.data()));
}

std::int64_t ConsecutiveMatcher::oldest_position(std::uint64_t event) const noexcept {
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max();
  for (const std::uint32_t index : pending_)
    oldest = std::min(oldest, latest_[(event - nodes_[index].depth + 1) % kMaxLength].position);
  return oldest;
}

}  // namespace walle::stream
