// Teams: every item of the work is run once, by a member in range, and its result is visible to the caller afterwards.
#include <numeric>
#include <vector>

#include "check.h"
#include "core/team.h"

namespace {

using namespace walle;

void each_item_once(int size, std::int64_t count, int rounds) {
  Team team(size);
  CHECK(team.size() == size);
  std::vector<std::int64_t> done(static_cast<std::size_t>(count));
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> by(static_cast<std::size_t>(count), -1);
    team.each(count, [&](std::int64_t i, int member) {
      done[static_cast<std::size_t>(i)] += i;  // no atomics: only one member gets i, and rounds follow each other
      by[static_cast<std::size_t>(i)] = member;
    });
    for (const int member : by) CHECK(member >= 0 && member < size);
  }
  for (std::int64_t i = 0; i < count; ++i) CHECK(done[static_cast<std::size_t>(i)] == i * rounds);
}

// A phase reads what any member wrote in the phase before.
void phases_follow_each_other() {
  Team team(3);
  std::vector<std::int64_t> first(1000), second(1000);
  for (int round = 0; round < 50; ++round) {
    team.each(1000, [&](std::int64_t i, int) { first[static_cast<std::size_t>(i)] = i + round; });
    team.each(1000, [&](std::int64_t i, int) { second[static_cast<std::size_t>(i)] = first[static_cast<std::size_t>(999 - i)]; });
    CHECK(std::accumulate(second.begin(), second.end(), std::int64_t{0}) == 999 * 500 + 1000 * round);
  }
}

void teams_end_at_once() {
  for (int i = 0; i < 50; ++i) Team unused(4);
}

}  // namespace

int main() {
  for (const int size : {1, 2, 4})
    for (const std::int64_t count : {0, 1, 2, 3, 100}) each_item_once(size, count, 200);
  phases_follow_each_other();
  teams_end_at_once();
  return check::failures != 0;
}
