// Task VMs: calls from other threads, and a VM's life on its interpreter's thread.
#include "vm/task_vm.h"

#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "vm/array_loans.h"
#include "vm/call.h"
#include "vm/interpreter.h"
#include "vm/interpreter_pool.h"

namespace walle::vm {

namespace {

constexpr int kResetAttempts = 3;                                  // a finalizer that does not end uses up one
constexpr int kStarvedResetAttempts = 12;                          // further ones that got almost no processor time
constexpr std::int64_t kResetBytes = std::int64_t{8} << 20;        // for a reset, beyond the VM's limit or its usage
constexpr std::int64_t kInterpreterBytes = std::int64_t{5} << 20;  // leaked with a discarded one, about

thread_local TaskVm* current_vm = nullptr;

std::chrono::nanoseconds thread_processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

TaskVm* TaskVm::current() { return current_vm; }

// --- From other threads

std::string TaskVm::reset_failure() const {
  const std::lock_guard lock(mutex_);
  return reset_failure_;
}

std::int64_t TaskVm::leaked_bytes() const {
  const std::lock_guard lock(mutex_);
  return leaked_bytes_;
}

bool TaskVm::alive() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::starting || state_ == State::open;
}

void TaskVm::submit(std::shared_ptr<ReplySink> replies, std::uint64_t call_id, std::string function, Value arguments,
                    std::optional<std::chrono::nanoseconds> deadline) {
  auto call = std::make_shared<Call>();
  call->replies = std::move(replies);
  call->id = call_id;
  call->function = std::move(function);
  call->arguments = std::move(arguments);
  call->deadline = deadline;
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(call));
  has_calls_.store(true, std::memory_order_relaxed);
  if (state_ == State::starting || state_ == State::open)
    changed_.notify_all();
  else
    reject_queued(reject_reason_.empty() ? kClosed : reject_reason_);
}

void TaskVm::cancel(std::uint64_t call_id) {
  const std::lock_guard lock(mutex_);
  if (current_ && current_->id == call_id) return request_stop(current_, Outcome::cancelled);
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const auto& call) { return call->id == call_id; });
  if (found == queue_.end()) return;
  (*found)->replies->push({call_id, Outcome::cancelled, {}, ""});
  queue_.erase(found);
}

void TaskVm::answer(std::uint64_t call_id, Value value, bool is_error) {
  const std::lock_guard lock(mutex_);
  if (!current_ || current_->id != call_id) return;
  current_->callback_result.emplace(std::move(value), is_error);
  changed_.notify_all();
}

void TaskVm::close() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::starting && state_ != State::open) return;
  state_ = State::closing;
  reject_queued(kClosed);
  if (current_)
    request_stop(current_, Outcome::closed);
  else if (interpreter_ != nullptr)
    InterpreterPool::instance().mark_releasing(*interpreter_);
  changed_.notify_all();
}

bool TaskVm::join(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return state_ == State::ended; });
}

// --- On the interpreter's thread

bool TaskVm::is_starting() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::starting;
}

void TaskVm::fail_start(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (reject_reason_.empty()) reject_reason_ = why;
  state_ = State::ended;
  report({.kind = VmChange::Kind::rejecting,
          .text = reject_reason_});  // sent before the replies, whose receivers may ask whether the VM is alive
  reject_queued(reject_reason_);
  report({.kind = VmChange::Kind::ended, .text = reject_reason_});
  changed_.notify_all();
}

std::string TaskVm::run_in(Interpreter& interpreter) {
  {
    const std::lock_guard lock(mutex_);
    interpreter_ = &interpreter;
  }
  current_vm = this;
  heap_ = std::make_shared<Heap>(*this);
  Heap::current() = heap_.get();
  current_work_context() = heap_;
#ifdef __linux__
  system_thread_ = static_cast<pid_t>(syscall(SYS_gettid));
#endif
  if (settings_.place_entry != nullptr) {
    settings_.place_entry->thread = interpreter.thread_id;
    use_signal_stack();
  }
  PyEval_RestoreThread(interpreter.thread);
  interpreter.enter_context();
  heap_->set_limit(settings_.memory_bytes);
  const bool is_ready = is_starting() && start_task();
  create_ms_ = std::chrono::duration<double, std::milli>(Watchdog::Clock::now() - created_at_).count();
  PyThreadState* saved = PyEval_SaveThread();
  {
    const std::lock_guard lock(mutex_);
    if (!is_ready) {
      state_ = State::closing;
      report({.kind = VmChange::Kind::rejecting, .text = reject_reason_});
      reject_queued(reject_reason_);
    } else if (state_ == State::starting) {
      state_ = State::open;
      report({.kind = VmChange::Kind::opened, .create_ms = create_ms()});
    }
  }
  while (const auto call = next_call()) {
    PyEval_RestoreThread(saved);
    run_call(*call);
    saved = PyEval_SaveThread();
  }
  InterpreterPool::instance().mark_releasing(interpreter);
  PyEval_RestoreThread(saved);
  enter_phase("end", nullptr);  // finalizers are the task's code
  std::string reason = reset_interpreter();
  PyEval_SaveThread();
  {
    const std::lock_guard lock(mutex_);
    if (reason.empty() && has_lowest_priority_) reason = "its thread was given the lowest priority, which cannot be raised again";
    const bool is_task_fault = calls() > 0 && (has_exceeded_memory_ || !is_out_of_memory_);
    if (!reason.empty() && is_task_fault) {
      reset_failure_ = reason;
      leaked_bytes_ = kInterpreterBytes + std::max<std::int64_t>(heap_->used_bytes(), 0);
    }
  }
  current_vm = nullptr;
  Heap::current() = nullptr;
  current_work_context() = nullptr;
  return reason;
}

void TaskVm::end() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::abandoned) count_abandoned_end();
  state_ = State::ended;
  interpreter_ = nullptr;
  reject_queued(reject_reason_.empty() ? kClosed : reject_reason_);
  report({.kind = VmChange::Kind::ended, .reset_failure = reset_failure_, .leaked_bytes = leaked_bytes_});
  changed_.notify_all();
}

void TaskVm::report(VmChange change) const {
  if (settings_.on_change) settings_.on_change(change);
}

bool TaskVm::start_task() {
  // Without the VM's account: its resources are files that are mapped, and do not count towards the task's memory.
  auto account = std::exchange(current_work_context(), nullptr);
  PyObject* config = to_python(settings_.config, port_);
  current_work_context() = std::move(account);
  PyObject* done = config != nullptr ? PyObject_CallOneArg(interpreter_->start_function, config) : nullptr;
  Py_XDECREF(config);
  Py_XDECREF(done);
  if (done != nullptr) return true;
  std::string text = "the VM could not start: " + take_error_text();
  const std::lock_guard lock(mutex_);
  reject_reason_ = std::move(text);
  return false;
}

// A reset runs in calls that the watchdog can stop, because the finalizers of the task's objects are the task's code.
std::string TaskVm::reset_interpreter() {
  if (settings_.memory_bytes > 0) heap_->set_limit(std::max(settings_.memory_bytes, heap_->used_bytes()) + kResetBytes);
  std::string failure = kClosed;
  int starved = 0;
  for (int attempt = 0; attempt < kResetAttempts && !failure.empty();) {
    const bool is_conclusive = reset_once(failure);
    if (is_conclusive || ++starved > kStarvedResetAttempts) ++attempt;
  }
  heap_->set_limit(0);
  ArrayLoans::current()->release_ended();
  return failure.empty() ? interpreter_->verify_reset() : failure;
}

// Makes one attempt. Returns false where it failed and got too little processor time to blame the task: the machine was busy.
bool TaskVm::reset_once(std::string& failure) {
  const auto call = std::make_shared<Call>();
  call->deadline = settings_.grace;
  {
    const std::lock_guard lock(mutex_);
    make_current(call);
  }
  const auto before = thread_processor_time();
  failure = interpreter_->reset_once(is_out_of_memory_);
  const auto used = thread_processor_time() - before;
  finish(*call, {});
  return failure.empty() || !call->stop_reason || used > settings_.grace / 4;
}

std::shared_ptr<TaskVm::Call> TaskVm::next_call() {
  // A caller that waits for each result submits its next call within some ten microseconds, which is what blocking and waking up
  // costs both sides. While this thread spins, it yields its core to any other thread.
  const auto until = Watchdog::Clock::now() + kSpinTime;
  while (!has_calls_.load(std::memory_order_relaxed) && Watchdog::Clock::now() < until) std::this_thread::yield();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ != State::open || !queue_.empty(); });
  if (state_ != State::open) return nullptr;
  auto call = std::move(queue_.front());
  queue_.pop_front();
  has_calls_.store(!queue_.empty(), std::memory_order_relaxed);
  make_current(call);
  return call;
}

}  // namespace walle::vm
