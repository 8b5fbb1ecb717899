// Tests of stream processing on numbered ids: the trie and skip-till-next against brute force over random conditions that come
// and go, child slots that overflow, and the sequences against plain lists.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <span>

#include "check.h"
#include "stream/flat_map.h"
#include "stream/page_sequence.h"
#include "stream/time_sequence.h"
#include "stream/trigger_trie.h"

namespace {

using namespace walle::stream;

struct Seen {
  Id event_id, page_id;
  std::int64_t ts_ms;
  bool passes;
};

// Returns the sequences with and without the optional ids.
std::vector<std::vector<Id>> sequences(const Condition& condition) {
  std::vector<std::vector<Id>> found(1);
  for (std::size_t k = 0; k < condition.trigger_ids.size(); ++k) {
    std::vector<std::vector<Id>> longer = found;
    for (std::vector<Id>& ids : longer) ids.push_back(condition.trigger_ids[k]);
    if ((condition.optional >> k & 1) == 0) found.clear();
    found.insert(found.end(), longer.begin(), longer.end());
  }
  return found;
}

// One condition of one task against every event since it was added. A match begins at each event that matches the first id, and
// ends where the first of the sequences with and without the optional ids is complete.
struct Watch {
  struct Partial {
    std::size_t first;  // number of the match's first event
    std::vector<Id> ids;
    std::size_t matched;
  };
  Condition condition;
  Id task = 0;
  std::vector<std::vector<Id>> all;  // sequences of the condition, once an event has come
  std::vector<Seen> events;
  std::vector<Partial> open;
  std::set<std::size_t> ended;  // first events whose match has ended
  bool triggered = false;
  std::int64_t triggered_ms = 0;

  static bool matches(Id id, const Seen& event) { return id == kWildcard || id == event.event_id || id == event.page_id; }

  bool feed(const Seen& event) {
    const bool passes = condition.predicate == 0 || event.passes;
    std::set<std::size_t> firsts;  // first events of the matches that end here
    events.push_back(event);
    if (all.empty()) all = sequences(condition);
    if (condition.skip_till_next) {
      for (const std::vector<Id>& ids : all)
        if (matches(ids[0], event)) open.push_back({events.size() - 1, ids, 0});
      std::vector<Partial> still_open;
      for (Partial one : open) {
        const bool last = one.matched + 1 == one.ids.size();
        if (matches(one.ids[one.matched], event) && (!last || passes)) {
          ++one.matched;
          if (last) firsts.insert(one.first);
        }
        if (one.matched != 0) still_open.push_back(one);
      }
      std::erase_if(still_open, [&](const Partial& one) { return firsts.contains(one.first); });
      open = still_open;
    } else {
      for (const std::vector<Id>& ids : all) {
        bool whole = events.size() >= ids.size() && passes;
        for (std::size_t i = 0; i < ids.size() && whole; ++i) whole = matches(ids[i], events[events.size() - ids.size() + i]);
        if (whole) firsts.insert(events.size() - ids.size());
      }
      std::erase_if(firsts, [&](std::size_t first) { return ended.contains(first); });
      ended.insert(firsts.begin(), firsts.end());
    }
    const bool in_time = std::any_of(firsts.begin(), firsts.end(), [&](std::size_t first) {
      return condition.within_ms == 0 || event.ts_ms - events[first].ts_ms <= condition.within_ms;
    });
    if (!in_time || (condition.cooldown_ms != 0 && triggered && std::abs(event.ts_ms - triggered_ms) < condition.cooldown_ms))
      return false;
    triggered = true;
    triggered_ms = event.ts_ms;
    return true;
  }
};

Condition random_condition(std::mt19937_64& random, std::int64_t ids) {
  Condition condition;
  const std::int64_t length = check::whole(random, 1, check::whole(random, 0, 20) == 0 ? 64 : 5);
  for (std::int64_t i = 0; i < length; ++i)
    condition.trigger_ids.push_back(check::whole(random, 0, 9) == 0 ? kWildcard
                                                                    : static_cast<Id>(check::whole(random, 2, ids + 1)));
  for (std::int64_t k = 1, left = check::whole(random, 0, 4); k + 1 < length && left > 0; ++k)
    if (check::whole(random, 0, 3) == 0) {
      condition.optional |= std::uint64_t{1} << k;
      --left;
    }
  if (check::whole(random, 0, 1) == 0) return condition;
  condition.within_ms = check::whole(random, 0, 1) * check::whole(random, 1, 20);
  condition.cooldown_ms = check::whole(random, 0, 1) * check::whole(random, 1, 20);
  condition.predicate = static_cast<std::uint32_t>(check::whole(random, 0, 1));
  condition.skip_till_next = check::whole(random, 0, 1) == 1;
  return condition;
}

void trie_means_brute_force(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::int64_t ids = check::whole(random, 1, 4);
  TriggerTrie trie;
  std::vector<Watch> watches;
  std::size_t triggers = 0;
  for (int step = 0; step < 400; ++step) {
    const std::int64_t kind = check::whole(random, 0, 9);
    if (kind == 0 && !watches.empty()) {
      const auto at = static_cast<std::size_t>(check::whole(random, 0, static_cast<std::int64_t>(watches.size()) - 1));
      CHECK(trie.remove(watches[at].condition, watches[at].task));
      CHECK(!trie.remove(watches[at].condition, watches[at].task));
      watches.erase(watches.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (kind <= 1) {
      Watch watch;
      watch.condition = random_condition(random, ids);
      watch.task = static_cast<Id>(check::whole(random, 2, 5));
      const bool known = std::any_of(watches.begin(), watches.end(), [&](const Watch& other) {
        return other.task == watch.task && other.condition == watch.condition;
      });
      CHECK(trie.add(watch.condition, watch.task) == !known);
      if (!known) watches.push_back(watch);
    } else {
      const Seen event{static_cast<Id>(check::whole(random, 2, ids + 1)), static_cast<Id>(check::whole(random, 2, ids + 2)),
                       std::max<std::int64_t>(0, 3 * step + check::whole(random, -9, 9)), check::whole(random, 0, 1) == 1};
      bool passes = event.passes;
      const ContentsTest test{[](void* context, std::uint32_t) { return *static_cast<bool*>(context); }, &passes};
      std::set<Id> expected;
      for (Watch& watch : watches)
        if (watch.feed(event)) expected.insert(watch.task);
      const std::span<const Id> found = trie.feed(event.event_id, event.page_id, {event.ts_ms, step}, test);
      CHECK(std::set<Id>(found.begin(), found.end()) == expected);
      triggers += expected.size();
    }
    CHECK(trie.size() == watches.size());
  }
  CHECK(triggers > 0);
  for (const Watch& watch : watches) CHECK(trie.remove(watch.condition, watch.task));
  CHECK(trie.node_count() == 1 && trie.pending() == 0 && trie.size() == 0);
}

// Thousands of nodes, which are packed while matches are under way and pairs come and go.
void many_nodes_are_packed() {
  std::mt19937_64 random(5);
  TriggerTrie trie;
  std::vector<Watch> watches;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 150 << round; ++i) {
      Watch watch;
      for (std::int64_t length = check::whole(random, 1, 6); length > 0; --length)
        watch.condition.trigger_ids.push_back(static_cast<Id>(check::whole(random, 1, 30 + 4000 * (length % 2) * (i % 2))));
      watch.task = static_cast<Id>(2 + watches.size());
      CHECK(trie.add(watch.condition, watch.task));
      watches.push_back(watch);
    }
    for (int i = 0; i < 60 << round; ++i) {
      const auto at = static_cast<std::size_t>(check::whole(random, 0, static_cast<std::int64_t>(watches.size()) - 1));
      if (watches[at].condition.trigger_ids.empty()) continue;
      CHECK(trie.remove(watches[at].condition, watches[at].task));
      watches[at].condition.trigger_ids.clear();
    }
    for (int i = 0; i < 40; ++i) {
      const Seen event{static_cast<Id>(check::whole(random, 2, 30)), static_cast<Id>(check::whole(random, 2, 4030)), 0, true};
      std::set<Id> expected;
      for (Watch& watch : watches)
        if (!watch.condition.trigger_ids.empty() && watch.feed(event)) expected.insert(watch.task);
      const std::span<const Id> found = trie.feed(event.event_id, event.page_id, {}, {});
      CHECK(std::set<Id>(found.begin(), found.end()) == expected);
    }
  }
  for (const Watch& watch : watches)
    if (!watch.condition.trigger_ids.empty()) CHECK(trie.remove(watch.condition, watch.task));
  CHECK(trie.node_count() == 1);
}

Condition condition_of(std::vector<Id> trigger_ids) {
  Condition condition;
  condition.trigger_ids = std::move(trigger_ids);
  return condition;
}

// A node's children get a table when they are many, lose it when larger ids make it too long for them, and get it again.
void children_move_between_tables_and_map() {
  TriggerTrie trie;
  std::set<Id> ids;
  const auto check_all = [&](Id beyond) {
    for (Id id = kFirstId; id < beyond; ++id) {
      trie.feed(7, kUnknown, {}, {});
      const std::span<const Id> found = trie.feed(id, kUnknown, {}, {});
      CHECK(ids.contains(id) ? found.size() == 1 && found[0] == id : found.empty());
    }
  };
  const auto add = [&](Id id) { CHECK(trie.add(condition_of({7, id}), id) && ids.insert(id).second); };
  for (const Id id : {8u, 70u, 200u, 134u}) add(id);  // three of them share a bit of the filter
  check_all(300);
  for (Id id = 300; id < 340; ++id) add(id);
  check_all(400);
  for (const Id id : {1000u, 9000u, 100000u}) add(id);
  check_all(10000);
  for (Id id = 2000; id < 11000; ++id)
    if (!ids.contains(id)) add(id);
  check_all(12000);
  CHECK(trie.feed(100000, 300000, {}, {}).empty());  // ids beyond those of all conditions
  while (ids.size() > 3) {
    CHECK(trie.remove(condition_of({7, *ids.begin()}), *ids.begin()));
    ids.erase(ids.begin());
  }
  check_all(12000);
  for (const Id id : ids) CHECK(trie.remove(condition_of({7, id}), id));
  CHECK(trie.node_count() == 1);
  ids.clear();
  for (Id id = 20; id < 60; ++id) add(id);
  check_all(100);
}

// A condition that is added while a match of its prefix is under way waits for a match of its own, and is then as any other.
void conditions_added_in_mid_match() {
  TriggerTrie trie;
  const auto feed = [&](Id id) {
    const std::span<const Id> found = trie.feed(id, kUnknown, {}, {});
    return std::set<Id>(found.begin(), found.end());
  };
  CHECK(trie.add(condition_of({2, 3}), 10));
  feed(2);
  for (const Id task : {11u, 12u, 13u}) CHECK(trie.add(condition_of({2, 3}), task) && !trie.add(condition_of({2, 3}), task));
  CHECK(feed(3) == std::set<Id>{10});
  for (int round = 0; round < 2; ++round) {
    CHECK(feed(2).empty());
    CHECK(feed(3) == (std::set<Id>{10, 11, 12, 13}));
  }
  CHECK(trie.remove(condition_of({2, 3}), 10));
  for (int round = 0; round < 2; ++round) {  // one of the others takes the place of the removed one
    feed(2);
    CHECK(feed(3) == (std::set<Id>{11, 12, 13}));
    for (const Id task : {11u, 12u, 13u}) CHECK(!trie.add(condition_of({2, 3}), task));
  }
  for (const Id task : {11u, 12u, 13u})
    CHECK(trie.remove(condition_of({2, 3}), task) && !trie.remove(condition_of({2, 3}), task));
  CHECK(trie.node_count() == 1 && trie.size() == 0);
}

void flat_map_means_map(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  FlatMap flat;
  std::map<std::uint64_t, std::uint32_t> map;
  for (int step = 0; step < 20000; ++step) {
    const auto key = static_cast<std::uint64_t>(check::whole(random, 1, 300));
    const auto found = map.find(key);
    CHECK(flat.find(key) == (found == map.end() ? 0 : found->second));
    if (found == map.end()) {
      flat.insert(key, static_cast<std::uint32_t>(step + 1));
      map[key] = static_cast<std::uint32_t>(step + 1);
    } else if (check::whole(random, 0, 2) != 0) {
      flat.erase(key);
      map.erase(found);
    }
    CHECK(flat.size() == map.size());
  }
}

struct OpenVisit {
  Moment entered;
  Id page;
  std::int64_t size_bytes, fed_before;  // bytes of its events, and of all events before its enter
};

void sequences_mean_plain_lists(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const TimeBounds recent_bounds{check::whole(random, 1, 9), check::whole(random, 20, 200), check::whole(random, 0, 30)};
  const PageBounds page_bounds{check::whole(random, 1, 4), check::whole(random, 50, 300), check::whole(random, 2, 40),
                               check::whole(random, 0, 1) * check::whole(random, 5, 60), check::whole(random, 100, 2000)};
  TimeSequence recent(recent_bounds);
  PageSequence pages(page_bounds);
  std::deque<std::pair<Moment, std::int64_t>> latest;
  std::vector<OpenVisit> open;
  std::int64_t evicted = 0, fed_bytes = 0;
  for (std::int64_t position = 0; position < 3000; ++position) {
    const Moment moment{std::max<std::int64_t>(0, 2 * position + check::whole(random, -5, 5)), position};
    const std::int64_t size = check::whole(random, 1, 60);
    latest.emplace_back(moment, size);
    const auto bytes = [](const auto& list, auto&& of) {
      std::int64_t sum = 0;
      for (const auto& one : list) sum += of(one);
      return sum;
    };
    const auto latest_bytes = [&] { return bytes(latest, [](const auto& one) { return one.second; }); };
    std::size_t dropped = 0;
    while (!latest.empty() &&
           (static_cast<std::int64_t>(latest.size()) > recent_bounds.max_events || latest_bytes() > recent_bounds.max_bytes ||
            (recent_bounds.max_age_ms != 0 && moment.ts_ms - latest.front().first.ts_ms > recent_bounds.max_age_ms))) {
      latest.pop_front();
      ++dropped;
    }
    CHECK(recent.append(moment, size) == dropped);
    CHECK(recent.size() == latest.size() && recent.size_bytes() == latest_bytes());
    if (!latest.empty()) CHECK(recent.oldest_position() == latest.front().first.position);

    const auto page = static_cast<Id>(check::whole(random, 2, 4));
    const auto kind = static_cast<PageEvent>(check::whole(random, 0, 2));
    if (kind == PageEvent::enter) open.push_back({moment, page, 0, fed_bytes});
    fed_bytes += size;
    std::ptrdiff_t own = -1;
    for (std::size_t i = 0; i < open.size(); ++i)
      if (open[i].page == page) own = static_cast<std::ptrdiff_t>(i);
    std::size_t closed = 0;
    const auto index = pages.feed(kind, page, moment, size);
    CHECK((index == PageSequence::kNoVisit) == (own < 0));
    if (own >= 0) {
      open[static_cast<std::size_t>(own)].size_bytes += size;
      CHECK(pages.visit(index).entered.position == open[static_cast<std::size_t>(own)].entered.position);
      CHECK(pages.visit(index).size_bytes == open[static_cast<std::size_t>(own)].size_bytes);
      if (kind == PageEvent::exit) {
        open.erase(open.begin() + own);
        ++closed;
      }
    }
    const auto open_bytes = [&] { return bytes(open, [](const auto& one) { return one.size_bytes; }); };
    while (!open.empty() && (static_cast<std::int64_t>(open.size()) > page_bounds.max_open ||
                             open_bytes() > page_bounds.max_bytes || position - open[0].entered.position > page_bounds.max_span ||
                             fed_bytes - open[0].fed_before > page_bounds.max_span_bytes ||
                             (page_bounds.max_age_ms != 0 && moment.ts_ms - open[0].entered.ts_ms > page_bounds.max_age_ms))) {
      open.erase(open.begin());
      ++closed, ++evicted;
    }
    CHECK(pages.closed().size() == closed && pages.evicted() == evicted);
    CHECK(pages.open() == open.size() && pages.size_bytes() == open_bytes());
    if (!open.empty()) CHECK(pages.oldest_position() == open[0].entered.position);
  }
  CHECK(evicted > 0);
}

}  // namespace

int main() {
  for (int seed = 0; seed < check::rounds(300); ++seed) trie_means_brute_force(static_cast<std::uint64_t>(seed));
  children_move_between_tables_and_map();
  conditions_added_in_mid_match();
  many_nodes_are_packed();
  flat_map_means_map(1);
  for (std::uint64_t seed = 0; seed < 20; ++seed) sequences_mean_plain_lists(seed);
  return check::failures == 0 ? 0 : 1;
}
