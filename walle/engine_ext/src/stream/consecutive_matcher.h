// Trie of the conditions whose events are consecutive, with the two pending lists (§5.1).
#pragma once
#include <array>
#include <limits>
#include <span>

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

  // Adds the pair and returns true; false if it is there already. Events from `next_event` on may match. The sequences of a
  // condition with optional ids have nodes each; those that share a prefix share them.
  bool add(const Condition& condition, Id task, std::uint64_t next_event);
  // Removes the pair and the nodes that no other condition needs; false if the pair is not there.
  bool remove(const Condition& condition, Id task);
  // Matches event number `event`, and triggers the tasks of the conditions that end there.
  void feed(Id event_id, Id page_id, Moment moment, std::uint64_t event, TriggeredTasks& triggered);

  std::size_t pending() const noexcept { return pending_count_ - 1; }
  std::size_t node_count() const noexcept { return nodes_.size() - 1 - free_nodes_.size(); }
  // Position of the event at which the longest match under way began; the largest number if no match is under way.
  std::int64_t oldest_position(std::uint64_t event) const noexcept;

 private:
  static constexpr std::uint32_t kNone = 0;               // no node, end, option or table has index 0
  static constexpr std::uint32_t kStart = 1;              // the start node
  static constexpr std::size_t kTableSlotsPerChild = 16;  // bound of every table but the start node's

  // The children of a node with many are in a separate table, by id: one load, without a branch. Those of the others are in
  // sparse_children_, where few ids pass the filter: most events match none of them.
  struct alignas(32) Node {
    std::uint64_t filter = 0;         // bit k: a named child has an id that is k modulo 64; others may have had one
    Id task = kNone;                  // task of a condition without options that ends here; kNone: none
    std::uint32_t first_end = kNone;  // list of the other conditions that end here
    std::uint32_t table = kNone;      // index in tables_ of the child by id 0
    std::uint32_t wildcard_child = kNone;
    std::uint32_t named_children = 0;  // all but the wildcard's
    std::uint8_t depth = 0;
    std::uint8_t has_task = 0, has_children = 0;  // 1 or 0: an event adds them to the ends of its lists
    bool may_have(Id id) const noexcept { return (filter >> (id % 64) & 1) != 0; }
  };
  struct Options {
    Condition condition;  // condition without trigger ids, if none is optional
    LatestTrigger latest;
    std::size_t ends = 0;  // ends that share these options: one of each sequence
    // Bit k: a match that began k events before `ended_at` has ended. Later ones have the same bits, moved on.
    std::uint64_t ended = 0, ended_at = 0;
    // Returns whether no match that began `since` events before this one, fewer than kMaxLength, has ended.
    bool is_open(std::uint64_t event, std::uint64_t since) const noexcept;
    void end_match(std::uint64_t event, std::uint64_t since) noexcept;
  };
  struct End {
    Id task = 0;
    std::uint32_t next = kNone;
    std::uint64_t first_event = 0;  // the earliest event that may trigger: a match under way over a shared prefix may not
    std::uint32_t options = kNone;  // index in options_, for a condition that has some
  };
  static std::uint64_t edge(std::uint32_t node, Id id) noexcept { return static_cast<std::uint64_t>(node) << 32 | id; }
  std::uint32_t child(std::uint32_t node, Id id) const noexcept;
  std::uint32_t add_child(std::uint32_t node, Id id);
  void remove_child(std::uint32_t node, Id id) noexcept;
  bool deserves_table(std::uint32_t node) const noexcept;
  std::uint32_t allocate_table();
  void put_child(std::uint32_t node, Id id, std::uint32_t child);
  void widen_tables(Id id);
  void pack();
  void stop_pending(std::uint32_t node) noexcept;
  std::uint32_t find_end(std::uint32_t node, const Condition& condition, Id task) const noexcept;
  bool same_options(const End& end, const Condition& condition) const noexcept;
  bool add_sequence(std::span<const Id> ids, const Condition& condition, Id task, std::uint64_t next_event,
                    std::uint32_t& options);
  bool remove_sequence(std::span<const Id> ids, const Condition& condition, Id task) noexcept;
  void trigger(std::uint32_t node, std::uint64_t event, TriggeredTasks& triggered);

  std::vector<Node> nodes_ = std::vector<Node>(2);  // node 0 has no child and no end: it is what a failed look-up finds
  std::uint32_t table_size_ = 16;                   // a power of two; all ids of conditions are smaller
  std::vector<std::uint32_t> tables_ = std::vector<std::uint32_t>(1);  // one after the other from index 1 on
  FlatMap sparse_children_;                                            // by node and id
  std::vector<End> ends_ = std::vector<End>(1);
  std::vector<Options> options_ = std::vector<Options>(1);
  std::size_t added_nodes_ = 0;  // nodes added since they were packed
  std::vector<std::uint32_t> free_nodes_, free_ends_, free_options_, free_tables_;
  // The start node, and the nodes that the latest event matched and that have children. Both arrays have room for more than are
  // in use: resizing them for each event costs as much as a look-up.
  std::array<std::vector<std::uint32_t>, 2> pending_{{{kStart}, {kStart}}};
  std::size_t current_ = 0, pending_count_ = 1;
  std::vector<std::uint32_t> listed_;      // work space of `feed`: matched nodes with a list of ends
  std::array<Moment, kMaxLength> latest_;  // times of the latest events, by event number modulo the array's size
};

}  // namespace walle::stream
