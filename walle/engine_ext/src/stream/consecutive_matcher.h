// Trie of the conditions whose events are consecutive, with the two pending lists (§5.1).
#pragma once
#include <array>
#include <limits>

#include "stream/condition.h"
#include "stream/flat_map.h"
#include "stream/triggered_tasks.h"

namespace walle::stream {

// The paper's pending lists hold the nodes that are desired next. Here they hold their parents, so that the desired nodes
// below one parent are found by look-up: the static list is the start node, the dynamic list the nodes that the latest event
// matched. A pending node costs two look-ups, most of which its filter answers, and one for a wildcard.
class ConsecutiveMatcher {
 public:
  ConsecutiveMatcher();

  // Adds the pair and returns true; false if it is there already. Events from `next_event` on may match.
  bool add(const Condition& condition, Id task, std::uint64_t next_event);
  // Removes the pair and the nodes that no other condition needs; false if the pair is not there.
  bool remove(const Condition& condition, Id task) noexcept;
  // Matches event number `event`, and triggers the tasks of the conditions that end there.
  void feed(Id event_id, Id page_id, Moment moment, std::uint64_t event, TriggeredTasks& triggered);

  std::size_t pending() const noexcept { return pending_.size(); }
  std::size_t node_count() const noexcept { return nodes_.size() - free_nodes_.size(); }
  // Position of the event at which the longest match under way began; the largest number if no match is under way.
  std::int64_t oldest_position(std::uint64_t event) const noexcept;

 private:
  struct Node {
    std::uint64_t filter = 0;          // bit id % 64 of each child's id; bits of removed children may stay
    std::uint32_t children = 0;        // the wildcard's included
    std::uint32_t wildcard_child = 0;  // 0: none
    Id only_id = kUnknown;             // where there is one child, which is not the wildcard's, and known to be `only_child`
    std::uint32_t only_child = 0;
    std::uint32_t first_end = kNone;  // list of the conditions that end here
    std::uint32_t depth = 0;
  };
  struct End {
    Id task = 0;
    std::uint32_t next = kNone;
    std::uint64_t first_event = 0;  // the earliest event that may trigger: a match under way over a shared prefix may not
    std::uint32_t options = kNone;  // in options_, for a condition that has some
  };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  static std::uint64_t edge(std::uint32_t node, Id id) noexcept { return static_cast<std::uint64_t>(node) << 32 | id; }
  std::uint32_t child(std::uint32_t node, Id id) const noexcept;
  std::uint32_t add_child(std::uint32_t node, Id id);
  void remove_child(std::uint32_t node, Id id) noexcept;
  bool same_options(const End& end, const Condition& condition) const noexcept;
  void match(std::uint32_t node, Moment moment, std::uint64_t event, TriggeredTasks& triggered);

  std::vector<Node> nodes_;                    // 0 is the start node
  std::vector<std::uint32_t> start_children_;  // by id
  FlatMap edges_;                              // of the other nodes, by node and id
  std::vector<End> ends_;
  std::vector<Condition> options_;  // without trigger ids
  std::vector<std::uint32_t> free_nodes_, free_ends_, free_options_;
  std::vector<std::uint32_t> pending_, matched_;
  std::array<Moment, kMaxLength> latest_;  // of the latest events, by event number modulo its size
};

}  // namespace walle::stream
