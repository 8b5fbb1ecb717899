// Creation of task VMs, and what happens to all of them when the process exits or forks.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "vm/call.h"
#include "vm/interpreter.h"
#include "vm/interpreter_pool.h"
#include "vm/task_vm.h"

namespace walle::vm {

using namespace std::chrono_literals;

namespace {

// Process-wide, never destroyed: threads of abandoned VMs may reach it while the process exits.
struct VmRegistry {
  std::mutex mutex;
  std::vector<std::weak_ptr<TaskVm>> all;
  bool is_exiting = false;
  std::vector<std::shared_ptr<TaskVm>> locked;     // VMs locked during a fork
  std::vector<std::shared_ptr<TaskVm>> of_parent;  // VMs of the parent, in the child; kept until it exits
};

VmRegistry& vm_registry() {
  static VmRegistry& instance = *new VmRegistry();
  return instance;
}

constexpr auto kRuntimeWorkTime = 20s;  // limit for creating, booting or ending an interpreter, which cannot be interrupted

std::atomic<int> detached_threads{0};  // parked in the signal handler

}  // namespace

std::shared_ptr<TaskVm> TaskVm::start(Settings settings, const ArrayPort& port) {
  auto vm = std::shared_ptr<TaskVm>(new TaskVm(std::move(settings), port));
  {
    VmRegistry& vms = vm_registry();
    const std::lock_guard lock(vms.mutex);
    if (vms.is_exiting) throw std::runtime_error("the process is exiting; no VM can be created");
    if (retired_threads() >= kMaxRetired)
      throw std::runtime_error(std::to_string(retired_threads()) +
                               " VM threads are blocked in C calls that never end; restart the process");
    if (abandoned_threads() >= kMaxAbandoned)
      throw std::runtime_error(std::to_string(abandoned_threads()) +
                               " abandoned VM threads are still busy; no VM can be created until one ends");
    std::erase_if(vms.all, [](const auto& other) { return other.expired(); });
    vms.all.push_back(vm);
  }
  InterpreterPool::instance().acquire(vm);
  return vm;
}

// --- Exit

// Returns true once the VM has ended, and false past `until` where a call has not stopped: such a thread can be detached. A
// thread that creates, boots or ends its interpreter cannot, because it holds locks of the runtime, and is waited for much
// longer.
bool TaskVm::ended_or_stuck(Watchdog::Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, until, [&] { return state_ == State::ended; })) return true;
  const auto stuck = [&] { return state_ == State::abandoned && current_ != nullptr; };
  changed_.wait_until(lock, until + kRuntimeWorkTime, [&] { return state_ == State::ended || stuck(); });
  return state_ == State::ended;
}

int TaskVm::shut_down(std::chrono::nanoseconds timeout) {
  const auto until = Watchdog::Clock::now() + timeout;
  std::vector<std::shared_ptr<TaskVm>> open;
  {
    VmRegistry& vms = vm_registry();
    const std::lock_guard lock(vms.mutex);
    vms.is_exiting = true;
    for (const auto& weak : vms.all)
      if (auto vm = weak.lock()) open.push_back(std::move(vm));
  }
  for (const auto& vm : open) vm->close();
  InterpreterPool::instance().close();
  int busy = 0;
  for (const auto& vm : open) {
    if (vm->ended_or_stuck(until)) continue;
    ++busy;
    vm->detach();
  }
  InterpreterPool::instance().wait_all(kRuntimeWorkTime);
  return busy;
}

// The thread is stuck in C code. Py_FinalizeEx would end its interpreter under it, which aborts the process or waits
// indefinitely. Deleting the interpreter's record hides it from Py_FinalizeEx. Its threads are parked in a signal handler first,
// so that none uses the deleted record.
void TaskVm::detach() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::ended || interpreter_ == nullptr) return;
  state_ = State::detached;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    detached_threads.fetch_add(1);
    for (;;) pause();
  };
  sigaction(SIGURG, &action, nullptr);
  const int expected = detached_threads.load() + 1 + has_stopper_;
  // Both threads are alive: each takes the mutex once more before it ends.
  pthread_kill(interpreter_->thread_handle, SIGURG);
  if (has_stopper_) pthread_kill(stopper_handle_, SIGURG);
  for (int waited_ms = 0; detached_threads.load() < expected && waited_ms < 500; ++waited_ms) std::this_thread::sleep_for(1ms);
  // On a separate thread: deleting the states of other threads makes CPython forget the state of the thread that does it, and
  // PyGILState_Ensure, which other libraries call while the process ends, would then abort the process.
  std::thread(PyInterpreterState_Delete, PyThreadState_GetInterpreter(interpreter_->thread)).join();
  InterpreterPool::instance().mark_detached(*interpreter_);
}

// --- Forks

// A thread may lock one VM's mutex while it holds another's, so this never blocks on one while it holds others.
void TaskVm::before_fork() {
  VmRegistry& vms = vm_registry();
  vms.mutex.lock();
  std::vector<std::shared_ptr<TaskVm>> all;
  for (const auto& weak : vms.all)
    if (auto vm = weak.lock()) all.push_back(std::move(vm));
  std::size_t locked = 0;
  while (locked < all.size()) {
    if (all[locked]->mutex_.try_lock()) {
      ++locked;
      continue;
    }
    while (locked > 0) all[--locked]->mutex_.unlock();
    std::this_thread::yield();
  }
  vms.locked.insert(vms.locked.end(), all.begin(), all.end());
}

void TaskVm::after_fork(bool is_child) {
  VmRegistry& vms = vm_registry();
  for (const auto& vm : vms.locked) {
    if (is_child) vm->end_in_child();
    vm->mutex_.unlock();
  }
  std::vector<std::shared_ptr<TaskVm>> unlocked;
  unlocked.swap(vms.locked);
  if (is_child) {
    clear_thread_counts();
    vms.all.clear();
    vms.of_parent.insert(vms.of_parent.end(), unlocked.begin(), unlocked.end());
  }
  vms.mutex.unlock();
}

// With mutex_ held. The objects of the VM's thread stay unchanged: they cannot be released in the child.
void TaskVm::end_in_child() {
  new (&changed_) std::condition_variable();  // the old one may count waiters that do not exist in the child
  reject_reason_ = "the process was forked; its VMs stayed with the parent";
  state_ = State::ended;
  interpreter_ = nullptr;
  new (&current_) std::shared_ptr<Call>();
  new (&queue_) std::deque<std::shared_ptr<Call>>();
}

}  // namespace walle::vm
