// Forks while another thread holds what is the process's: the child finds it whole, and free.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "atomic/rates.h"
#include "check.h"
#include "core/fork_mutex.h"
#include "graph/packed_weights.h"
#include "kernels/table.h"

namespace {

using namespace walle;
using namespace std::chrono_literals;

// Set by the thread that holds a lock: it is inside, and stays there until the process has forked or, where the fork waits for
// it, a little while.
std::atomic<bool> inside, forked;

void stay() {
  inside = true;
  for (int i = 0; i < 100 && !forked; ++i) std::this_thread::sleep_for(2ms);
}

// `hold` calls `stay` with the lock held, on a thread of its own; `use` takes it in the child.
void child_can(const std::function<void()>& hold, const std::function<void()>& use) {
  inside = forked = false;
  std::thread holder(hold);
  while (!inside) std::this_thread::sleep_for(1ms);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // ends one that hangs
    use();
    ::_exit(0);
  }
  forked = true;
  holder.join();
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

void packed_weights_are_whole() {
  const Tensor constant = Tensor::empty(DType::f32, {4});
  PackedWeights packed;
  const auto make = [&] { return Tensor::empty(DType::f32, {8}); };
  child_can([&] { packed.get(constant, "slow", [&] { return stay(), make(); }); }, [&] { packed.get(constant, "other", make); });
}

void rates_are_whole() {
  static Table slow = kernels("scalar");
  static const PanelFn panel = slow.panel;
  slow.name = "slow";
  slow.panel = [](const PanelArgs& args) noexcept {
    if (!inside) stay();
    panel(args);
  };
  child_can([] { rates(slow); }, [] { rates(kernels("scalar")); });
}

// Whoever holds one may want the other, in either order.
void none_is_waited_for_with_another_in_hand() {
  ForkMutex one, other;
  for (ForkMutex* first : {&one, &other}) {
    ForkMutex* second = first == &one ? &other : &one;
    child_can(
        [&] {
          const std::lock_guard held(*first);
          stay();
          const std::lock_guard too(*second);
        },
        [&] { const std::scoped_lock both(one, other); });
  }
}

// Another part's lock, as the VMs' are, which a thread wants while it holds one of these; its handlers are made known later, and
// so run before those of the mutexes.
std::mutex another;
void others_come_after() {
  ForkMutex one;
  const auto prepare = [] { ForkMutex::hold_all(), another.lock(); };
  const auto resume = [] { another.unlock(), ForkMutex::let_go_of_all(); };
  CHECK(::pthread_atfork(prepare, resume, resume) == 0);
  child_can(
      [&] {
        const std::lock_guard held(one);
        stay();
        const std::lock_guard too(another);
      },
      [&] { const std::scoped_lock both(one, another); });
}

}  // namespace

int main() {
  packed_weights_are_whole();
  rates_are_whole();
  none_is_waited_for_with_another_in_hand();
  others_come_after();
  return check::failures == 0 ? 0 : 1;
}
