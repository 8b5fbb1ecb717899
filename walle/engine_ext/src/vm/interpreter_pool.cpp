#include "vm/interpreter_pool.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "vm/fork_handlers.h"
#include "vm/interpreter.h"
#include "vm/task_vm.h"

namespace walle::vm {

InterpreterPool& InterpreterPool::instance() {
  static InterpreterPool& pool = *new InterpreterPool();
  return pool;
}

void InterpreterPool::set_boot(Boot boot, const ArrayPort& port) {
  const std::lock_guard lock(mutex_);
  if (port_ != nullptr) return;
  boot_ = std::move(boot);
  port_ = &port;
  install_fork_handlers();
}

void InterpreterPool::register_module(const std::string& name, Value module) {
  auto shared = std::make_shared<const Value>(std::move(module));
  const std::lock_guard lock(mutex_);
  modules_.insert_or_assign(name, std::move(shared));
}

std::shared_ptr<const Value> InterpreterPool::find_module(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = modules_.find(name);
  return found != modules_.end() ? found->second : nullptr;
}

void InterpreterPool::acquire(const std::shared_ptr<TaskVm>& vm) {
  const std::lock_guard lock(mutex_);
  ++counts_.vms;
  if (!idle_.empty()) {
    idle_.back()->next_vm_ = vm;
    idle_.pop_back();
    changed_.notify_all();
  } else if (waiting_.size() < releasing_) {
    waiting_.push_back(vm);  // a reset takes less time than a new interpreter
  } else {
    create_for(vm);
  }
}

void InterpreterPool::mark_releasing(Interpreter& interpreter) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(interpreter.is_releasing_, true)) ++releasing_;
}

void InterpreterPool::cancel_release(Interpreter& interpreter) {
  std::vector<std::shared_ptr<TaskVm>> refused;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(interpreter.is_releasing_, false)) --releasing_;
    why = create_for_unserved(refused);
  }
  for (const auto& vm : refused) vm->fail_start(why);
}

// Creates interpreters for the VMs that wait for more than are being released. Returns why it failed for `refused`.
std::string InterpreterPool::create_for_unserved(std::vector<std::shared_ptr<TaskVm>>& refused) {
  std::string why;
  while (waiting_.size() > releasing_) {
    auto vm = std::move(waiting_.back());
    waiting_.pop_back();
    try {
      create_for(vm);
    } catch (const std::runtime_error& error) {
      why = error.what();
      refused.push_back(std::move(vm));
    }
  }
  return why;
}

void InterpreterPool::create_for(const std::shared_ptr<TaskVm>& vm) {
  if (counts_.discarded >= kMaxDiscarded)
    throw std::runtime_error(std::to_string(counts_.discarded) +
                             " interpreters were discarded because they could not be reset; no new one is created, restart the "
                             "process");
  all_.push_back(Interpreter::start(*this, vm));
}

InterpreterCounts InterpreterPool::counts() const {
  const std::lock_guard lock(mutex_);
  InterpreterCounts counts = counts_;
  counts.threads = all_.size();
  counts.idle = idle_.size();
  return counts;
}

void InterpreterPool::count_created() {
  const std::lock_guard lock(mutex_);
  ++counts_.created;
}

void InterpreterPool::put_back(Interpreter& interpreter) {
  const std::lock_guard lock(mutex_);
  ++counts_.recycled;
  if (std::exchange(interpreter.is_releasing_, false)) --releasing_;
  if (waiting_.empty()) {
    idle_.push_back(&interpreter);
  } else {
    interpreter.next_vm_ = std::move(waiting_.front());
    waiting_.pop_front();
  }
}

void InterpreterPool::discard(Interpreter& interpreter, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_.discarded;
    counts_.discard_reason = reason;
  }
  cancel_release(interpreter);
}

std::shared_ptr<TaskVm> InterpreterPool::next_vm(Interpreter& interpreter) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return interpreter.next_vm_ != nullptr || closed_; });
  if (interpreter.next_vm_ == nullptr) std::erase(idle_, &interpreter);
  return std::exchange(interpreter.next_vm_, nullptr);
}

void InterpreterPool::remove(Interpreter& interpreter) {
  const std::lock_guard lock(mutex_);
  std::erase(all_, &interpreter);
  changed_.notify_all();
}

void InterpreterPool::close() {
  std::deque<std::shared_ptr<TaskVm>> refused;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    refused.swap(waiting_);
    changed_.notify_all();
  }
  for (const auto& vm : refused) vm->fail_start("the process is exiting");
}

void InterpreterPool::wait_all(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] {
    return std::all_of(all_.begin(), all_.end(), [](const Interpreter* interpreter) { return interpreter->is_detached_; });
  });
}

void InterpreterPool::mark_detached(Interpreter& interpreter) {
  const std::lock_guard lock(mutex_);
  interpreter.is_detached_ = true;
}

void InterpreterPool::before_fork() { mutex_.lock(); }

// No thread of the child can enter the parent's interpreters, so that what they hold is not freed.
void InterpreterPool::after_fork(bool is_child) {
  if (is_child) {
    new (&changed_) std::condition_variable();  // the old one counts waiters that do not exist in the child
    new (&waiting_) std::deque<std::shared_ptr<TaskVm>>();
    all_.clear();
    idle_.clear();
    releasing_ = 0;
    counts_ = {};
  }
  mutex_.unlock();
}

}  // namespace walle::vm
