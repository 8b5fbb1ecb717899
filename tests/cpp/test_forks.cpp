// Forks while another thread holds a lock of the process: in the child, what it guards is consistent, and it is unlocked.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "check.h"
#include "core/fork_mutex.h"
#include "graph/packed_weights.h"

namespace {

using namespace walle;
using namespace std::chrono_literals;

// Set by the thread that holds a lock: it has locked it, and keeps it until the process has forked or, where the fork waits for
// it, for 200 ms.
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
  for (const char* key : {"other", "slow"})  // slow: the thread that makes it does not exist in the child
    child_can([&] { packed.get(constant, "slow", [&] { return stay(), make(); }); }, [&] { packed.get(constant, key, make); });
}

// A thread that holds one may wait for the other, in either order.
void a_fork_never_blocks_on_one_while_it_holds_another() {
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

// A lock of another part, as the VMs' are, which a thread takes while it holds one of these. Its handlers are installed later,
// and so run before those of the mutexes.
std::mutex another;
void other_locks_come_after() {
  ForkMutex one;
  const auto prepare = [] { ForkMutex::lock_all(), another.lock(); };
  const auto resume = [] { another.unlock(), ForkMutex::unlock_all(); };
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
  a_fork_never_blocks_on_one_while_it_holds_another();
  other_locks_come_after();
  return check::failures == 0 ? 0 : 1;
}
