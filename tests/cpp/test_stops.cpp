// Stops and faults: a run's stop reaches the members of a team, has one reason, and follows the stop around it; a fault stays its
// own run's. Each on several threads at once.
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "core/fault.h"
#include "core/team.h"
#include "core/work_context.h"
#include "graph/packed_weights.h"

namespace {

using namespace walle;
using namespace std::chrono_literals;

struct Account final : WorkContext {
  bool may_allocate(std::int64_t) override { return true; }
  void begin_loading() override {}
  void end_loading() override {}
};

// Signals that are pending once the test says so, and whose handler raises.
struct Raised final : SignalSource {
  Raised() : SignalSource(&bits, 2) {}
  bool handle() noexcept override {
    ++handled;
    __atomic_store_n(&bits, std::uintptr_t{0}, __ATOMIC_RELAXED);
    return true;
  }
  std::uintptr_t bits = 0;
  int handled = 0;
};

StopReason reason_of_throw() {
  try {
    throw_if_stopped();
  } catch (const WorkStopped& stopped) {
    return stopped.reason();
  }
  return StopReason::none;
}

void a_deadline_stops_a_team(int size) {
  Team team(size);
  const RunStop stop({StopLimits::Clock::now() + 20ms, nullptr});
  std::atomic<std::int64_t> done{0};
  team.each(1'000'000, [&](std::int64_t, int) {
    done.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(1ms);
  });
  CHECK(done.load() < 1'000'000);
  CHECK(reason_of_throw() == StopReason::deadline);
}

void another_thread_cancels() {
  Team team(3);
  RunStop stop({});
  std::thread canceller([&] {
    std::this_thread::sleep_for(10ms);
    stop.cancel();
  });
  while (reason_of_throw() == StopReason::none) team.each(3, [](std::int64_t, int) { std::this_thread::sleep_for(1ms); });
  canceller.join();
  CHECK(stop.reason() == StopReason::cancelled);
}

void a_signal_is_handled_once_on_the_thread_that_runs() {
  Team team(3);
  Raised raised;
  {
    const RunStop stop({StopLimits::Clock::time_point::max(), &raised});
    CHECK(reason_of_throw() == StopReason::none);
    __atomic_store_n(&raised.bits, std::uintptr_t{1}, __ATOMIC_RELAXED);  // another bit
    CHECK(reason_of_throw() == StopReason::none);
    __atomic_store_n(&raised.bits, std::uintptr_t{3}, __ATOMIC_RELAXED);
    team.each(100, [](std::int64_t, int) {});
    CHECK(reason_of_throw() == StopReason::signal);
    CHECK(raised.handled == 1);
  }
  CHECK(reason_of_throw() == StopReason::none);
}

void a_run_follows_the_stop_around_it() {
  auto account = std::make_shared<Account>();
  current_work_context() = account;
  {
    const RunStop stop({});
    CHECK(reason_of_throw() == StopReason::none);
    account->stopping = true;
    CHECK(reason_of_throw() == StopReason::vm);
  }
  CHECK(reason_of_throw() == StopReason::vm);
  account->stopping = false;
  CHECK(reason_of_throw() == StopReason::none);
  current_work_context() = nullptr;
}

void a_poll_within_a_loop_stops() {
  RunStop stop({});
  StopPoll poll;
  CHECK(poll.proceed(StopPoll::kInterval));
  stop.cancel();
  CHECK(!poll.proceed(StopPoll::kInterval));
  CHECK(!poll.proceed(1));
}

// A thread that waits for what another one packs is stopped, and neither holds a lock while a signal's handler may run.
void a_wait_for_packed_weights_stops() {
  const Tensor constant = Tensor::empty(DType::f32, {4});
  PackedWeights packed;
  std::atomic<bool> is_making{false}, may_end{false};
  const auto plain = [] { return Tensor::empty(DType::f32, {8}); };
  std::thread maker([&] {
    packed.get(constant, "slow", [&] {
      CHECK(packed.get(constant, "slow", plain).size() == 8);  // a signal handler may ask for it again
      is_making = true;
      for (int i = 0; i < 10'000 && !may_end; ++i) std::this_thread::sleep_for(1ms);
      return plain();
    });
  });
  while (!is_making) std::this_thread::sleep_for(1ms);
  packed.get(constant, "other", plain);
  const RunStop stop({StopLimits::Clock::now() + 20ms, nullptr});
  StopReason reason = StopReason::none;
  try {
    packed.get(constant, "slow", plain);
    reason = reason_of_throw();
  } catch (const WorkStopped& stopped) {
    reason = stopped.reason();
  }
  CHECK(reason == StopReason::deadline);
  CHECK(!may_end);
  may_end = true;
  maker.join();
}

// Teams of several runs at once: each run sees its own faults and no other's.
void faults_stay_with_their_run() {
  std::vector<std::thread> runs;
  for (int run = 0; run < 4; ++run)
    runs.emplace_back([run] {
      Team team(2);
      for (int round = 0; round < 200; ++round) {
        const FaultScope faults;
        team.each(64, [&](std::int64_t i, int) {
          if (run % 2 == 0 && i == 40) FaultScope::report("of an even run");
        });
        CHECK((faults.what() != nullptr) == (run % 2 == 0));
      }
    });
  for (std::thread& run : runs) run.join();
  FaultScope::report("of no run");
}

}  // namespace

int main() {
  for (const int size : {1, 3}) a_deadline_stops_a_team(size);
  another_thread_cancels();
  a_signal_is_handled_once_on_the_thread_that_runs();
  a_run_follows_the_stop_around_it();
  a_poll_within_a_loop_stops();
  a_wait_for_packed_weights_stops();
  faults_stay_with_their_run();
  return check::failures != 0;
}
