// Trie of the conditions whose events are consecutive, with the two pending lists (§5.1).
#pragma once
#include <array>
#include <limits>

#include "stream/child_slots.h"
#include "stream/condition.h"
#include "stream/flat_map.h"
#include "stream/triggered_tasks.h"

namespace walle::stream {

// The paper's pending lists hold the nodes that are desired next. Here they hold their parents, so that the desired nodes
// below one parent are found by look-up: the static list is the start node, the dynamic list the nodes that the latest event
// matched. A pending node costs two look-ups, by event id and by page id.
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
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // A child's slot is its id modulo the number of slots. A node takes so many slots that its children have one each; beyond a
  // bound, those that still share a slot are in overflow_. So a look-up is one load and one comparison, without a branch.
  // The first condition without options that ends at a node is in the node itself: half a cache line has all that most events
  // need.
  struct Node {
    std::uint64_t first_event = 0;    // as in End
    Id task = 0;                      // 0: no condition ends here
    std::uint32_t first_end = kNone;  // list of the other conditions that end here
    std::uint32_t first_slot = 0;
    std::uint32_t named_children = 0;  // all but the wildcard's
    std::uint32_t wildcard_child = 0;  // 0: none
    std::uint8_t log2_slots = 0;
    std::uint8_t depth = 0;
    bool overflows = false;
    bool has_children() const noexcept { return named_children != 0 || wildcard_child != 0; }
    bool has_ends() const noexcept { return task != 0 || first_end != kNone; }
    std::uint32_t slot(Id id) const noexcept { return first_slot + (id & ((1u << log2_slots) - 1)); }
  };
  struct Options {
    Condition condition;  // without trigger ids
    LatestTrigger latest;
  };
  struct End {
    Id task = 0;
    std::uint32_t next = kNone;
    std::uint64_t first_event = 0;  // the earliest event that may trigger: a match under way over a shared prefix may not
    std::uint32_t options = kNone;  // in options_, for a condition that has some
  };
  static std::uint64_t edge(std::uint32_t node, Id id) noexcept { return static_cast<std::uint64_t>(node) << 32 | id; }
  std::uint32_t child(std::uint32_t node, Id id) const noexcept;
  std::uint32_t named_child(std::uint32_t index, const Node& node, Id id) const noexcept;
  std::uint32_t add_child(std::uint32_t node, Id id);
  void add_slot(std::uint32_t node, Id id, std::uint32_t child);
  void remove_child(std::uint32_t node, Id id) noexcept;
  void pack();
  std::uint32_t find_end(std::uint32_t node, const Condition& condition, Id task) const noexcept;
  bool same_options(const End& end, const Condition& condition) const noexcept;
  void trigger(const Node& node, std::uint64_t event, TriggeredTasks& triggered);

  std::vector<Node> nodes_;                    // 0 is the start node
  std::vector<std::uint32_t> start_children_;  // by id
  ChildSlots slots_;                           // of the other nodes
  FlatMap overflow_;                           // children without a slot, by node and id
  std::vector<End> ends_;
  std::vector<Options> options_;
  std::vector<std::uint32_t> free_nodes_, free_ends_, free_options_;
  std::vector<std::uint32_t> pending_;
  std::vector<std::uint32_t> matched_;     // work space of `feed`
  std::size_t added_nodes_ = 0;            // since they were packed
  std::array<Moment, kMaxLength> latest_;  // of the latest events, by event number modulo its size
};

}  // namespace walle::stream
