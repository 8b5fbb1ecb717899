#include "vm/interpreter.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "vm/call.h"
#include "vm/home.h"
#include "vm/lending.h"

namespace walle::vm {

using namespace std::chrono_literals;

namespace {

// Process-wide, never destroyed: threads of abandoned VMs may reach it while the process exits.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Interpreter>> all;
  bool exiting = false;
  std::vector<std::shared_ptr<Interpreter>> held;       // during a fork
  std::vector<std::shared_ptr<Interpreter>> of_parent;  // in its child, for good
};

Registry& registry() {
  static Registry& one = *new Registry();
  return one;
}

constexpr int kWipings = 3;                                   // attempts; a finalizer that does not end takes one
constexpr int kStarvedWipings = 12;                           // and further ones that got next to no processor
constexpr std::int64_t kWipingBytes = std::int64_t{8} << 20;  // for wiping, beyond what the VM may have or has
constexpr std::int64_t kHomeBytes = std::int64_t{5} << 20;    // what one costs that is given up, about
constexpr auto kOwnWork = 20s;  // for making, booting and ending an interpreter, which cannot be broken off

thread_local Interpreter* interpreter_of_thread = nullptr;

std::chrono::nanoseconds processor_time() {  // of this thread
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

std::shared_ptr<Interpreter> Interpreter::start(Settings settings, const ArrayPort& port) {
  auto vm = std::shared_ptr<Interpreter>(new Interpreter(std::move(settings), port));
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (all.exiting) throw std::runtime_error("the process is exiting; no VM can be made");
    if (lost() >= kMaxLost)
      throw std::runtime_error(std::to_string(lost()) + " VM threads were lost in C calls that never end; restart the process");
    if (abandoned() >= kMaxAbandoned)
      throw std::runtime_error(std::to_string(abandoned()) +
                               " abandoned VM threads are still busy; no VM is made until one ends");
    std::erase_if(all.all, [](const auto& other) { return other.expired(); });
    all.all.push_back(vm);
  }
  Home::settle(vm);
  return vm;
}

Interpreter* Interpreter::here() { return interpreter_of_thread; }

std::string Interpreter::spoilt() const {
  const std::lock_guard lock(mutex_);
  return spoilt_;
}

std::int64_t Interpreter::lost_bytes() const {
  const std::lock_guard lock(mutex_);
  return lost_bytes_;
}

bool Interpreter::alive() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::starting || state_ == State::open;
}

// --- from other threads ------------------------------------------------------------------------------------------------

void Interpreter::submit(std::shared_ptr<Mailbox> mailbox, std::uint64_t call_id, std::string function, Value arguments,
                         std::optional<std::chrono::nanoseconds> deadline) {
  auto call = std::make_shared<Call>();
  call->mailbox = std::move(mailbox);
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
    refuse_queued(broken_.empty() ? kClosed : broken_);
}

void Interpreter::cancel(std::uint64_t call_id) {
  const std::lock_guard lock(mutex_);
  if (current_ && current_->id == call_id) return request_stop(current_, Outcome::cancelled);
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const auto& call) { return call->id == call_id; });
  if (found == queue_.end()) return;
  (*found)->mailbox->push({call_id, Outcome::cancelled, {}, ""});
  queue_.erase(found);
}

void Interpreter::answer(std::uint64_t call_id, Value value, bool is_error) {
  const std::lock_guard lock(mutex_);
  if (!current_ || current_->id != call_id) return;
  current_->answer.emplace(std::move(value), is_error);
  changed_.notify_all();
}

void Interpreter::close() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::starting && state_ != State::open) return;
  state_ = State::closing;
  refuse_queued(kClosed);
  if (current_)
    request_stop(current_, Outcome::closed);
  else if (home_ != nullptr)
    Home::expect(*home_);
  changed_.notify_all();
}

bool Interpreter::join(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return state_ == State::ended; });
}

// True once the thread has ended. False past `until` where a call has not stopped: such a thread can be cut loose. One that is
// making, booting or ending its interpreter cannot, as it holds locks of the runtime, and is waited for much longer.
bool Interpreter::ended_or_stuck(Watchdog::Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, until, [&] { return state_ == State::ended; })) return true;
  const auto stuck = [&] { return state_ == State::given_up && current_ != nullptr; };
  changed_.wait_until(lock, until + kOwnWork, [&] { return state_ == State::ended || stuck(); });
  return state_ == State::ended;
}

int Interpreter::shut_down(std::chrono::nanoseconds timeout) {
  const auto until = Watchdog::Clock::now() + timeout;
  std::vector<std::shared_ptr<Interpreter>> open;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.exiting = true;
    for (const auto& weak : all.all)
      if (auto vm = weak.lock()) open.push_back(std::move(vm));
  }
  for (const auto& vm : open) vm->close();
  Home::close_all();
  int busy = 0;
  for (const auto& vm : open) {
    if (vm->ended_or_stuck(until)) continue;
    ++busy;
    vm->cut_loose();
  }
  Home::wait_all(kOwnWork);
  return busy;
}

// A thread that holds one VM's mutex may want another's, so none is waited for while others are held.
void Interpreter::before_fork() {
  Registry& all = registry();
  all.mutex.lock();
  std::vector<std::shared_ptr<Interpreter>> vms;
  for (const auto& weak : all.all)
    if (auto vm = weak.lock()) vms.push_back(std::move(vm));
  std::size_t locked = 0;
  while (locked < vms.size()) {
    if (vms[locked]->mutex_.try_lock()) {
      ++locked;
      continue;
    }
    while (locked > 0) vms[--locked]->mutex_.unlock();
    std::this_thread::yield();
  }
  all.held.insert(all.held.end(), vms.begin(), vms.end());
}

void Interpreter::after_fork(bool is_child) {
  Registry& all = registry();
  for (const auto& vm : all.held) {
    if (is_child) vm->end_in_child();
    vm->mutex_.unlock();
  }
  std::vector<std::shared_ptr<Interpreter>> let_go;
  let_go.swap(all.held);
  if (is_child) {
    forget_all_threads();
    all.all.clear();
    all.of_parent.insert(all.of_parent.end(), let_go.begin(), let_go.end());
  }
  all.mutex.unlock();
}

// With mutex_ held. What the VM's thread was at stays as it is: its objects cannot be let go of here.
void Interpreter::end_in_child() {
  new (&changed_) std::condition_variable();  // the old one may know waiters that are not there
  broken_ = "the process was forked; its VMs stayed with the parent";
  state_ = State::ended;
  home_ = nullptr;
  new (&current_) std::shared_ptr<Call>();
  new (&queue_) std::deque<std::shared_ptr<Call>>();
}

// --- the VM's thread ---------------------------------------------------------------------------------------------------

bool Interpreter::is_wanted() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::starting;
}

void Interpreter::refuse(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) broken_ = why;
  state_ = State::ended;
  refuse_queued(broken_);
  changed_.notify_all();
}

std::string Interpreter::live(Home& home) {
  {
    const std::lock_guard lock(mutex_);
    home_ = &home;
  }
  interpreter_of_thread = this;
  heap_ = std::make_shared<Heap>(*this);
  Heap::here() = heap_.get();
  current_work_context() = heap_;
  system_thread_ = static_cast<pid_t>(syscall(SYS_gettid));
  PyEval_RestoreThread(home.thread);
  home.enter_context();
  heap_->set_limit(settings_.memory_bytes);
  const bool ready = is_wanted() && move_in();
  create_ms_ = std::chrono::duration<double, std::milli>(Watchdog::Clock::now() - made_at_).count();
  PyThreadState* saved = PyEval_SaveThread();
  {
    const std::lock_guard lock(mutex_);
    if (!ready) {
      state_ = State::closing;
      refuse_queued(broken_);
    } else if (state_ == State::starting) {
      state_ = State::open;
    }
  }
  while (const auto call = next_call()) {
    PyEval_RestoreThread(saved);
    run_call(*call);
    saved = PyEval_SaveThread();
  }
  Home::expect(home);
  PyEval_RestoreThread(saved);
  std::string reason = move_out();
  PyEval_SaveThread();
  {
    const std::lock_guard lock(mutex_);
    if (reason.empty() && is_lowered_) reason = "its thread was given the lowest priority, for good";
    const bool is_by_the_task = calls() > 0 && (exceeded_ || !is_out_of_memory_);
    if (!reason.empty() && is_by_the_task) {
      spoilt_ = reason;
      lost_bytes_ = kHomeBytes + std::max<std::int64_t>(heap_->used_bytes(), 0);
    }
  }
  interpreter_of_thread = nullptr;
  Heap::here() = nullptr;
  current_work_context() = nullptr;
  return reason;
}

void Interpreter::leave() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::given_up) forget_abandoned();
  state_ = State::ended;
  home_ = nullptr;
  refuse_queued(broken_.empty() ? kClosed : broken_);
  changed_.notify_all();
}

bool Interpreter::move_in() {
  PyObject* config = to_python(settings_.config, port_);
  PyObject* done = config != nullptr ? PyObject_CallOneArg(home_->start, config) : nullptr;
  Py_XDECREF(config);
  Py_XDECREF(done);
  if (done != nullptr) return true;
  std::string text = "the VM could not start: " + take_error_text();
  const std::lock_guard lock(mutex_);
  broken_ = std::move(text);
  return false;
}

// Wiping runs in calls that the watchdog can stop, because the finalizers of the task's objects are the task's code.
std::string Interpreter::move_out() {
  if (settings_.memory_bytes > 0) heap_->set_limit(std::max(settings_.memory_bytes, heap_->used_bytes()) + kWipingBytes);
  std::string failed = kClosed;
  int starved = 0;
  for (int attempt = 0; attempt < kWipings && !failed.empty();) {
    const bool had_its_time = wipe_once(failed);
    if (had_its_time || ++starved > kStarvedWipings) ++attempt;
  }
  heap_->set_limit(0);
  Lender::current()->drain();
  return failed.empty() ? home_->settle_down() : failed;
}

// One attempt. False where it failed and had too little of the processor to tell: a busy machine is not the task's doing.
bool Interpreter::wipe_once(std::string& failed) {
  const auto call = std::make_shared<Call>();
  call->deadline = settings_.grace;
  {
    const std::lock_guard lock(mutex_);
    make_current(call);
  }
  const auto before = processor_time();
  failed = home_->wipe_once(is_out_of_memory_);
  const auto used = processor_time() - before;
  finish(*call, {});
  return failed.empty() || !call->stopping || used > settings_.grace / 4;
}

std::shared_ptr<Interpreter::Call> Interpreter::next_call() {
  // A caller that waits for each result has its next call here in some ten microseconds, which is what falling asleep and being
  // woken costs both sides. Meanwhile whoever else wants the core has it.
  const auto until = Watchdog::Clock::now() + kAttentive;
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

// With mutex_ held: from here on the call can be stopped.
void Interpreter::make_current(const std::shared_ptr<Call>& call) {
  current_ = call;
  exceeded_ = false;
  stopped_at_.clear();
  heap_->stopping = false;
  if (!call->deadline) return;
  call->alarm = Watchdog::instance().set(Watchdog::Clock::now() + *call->deadline, [self = shared_from_this(), call] {
    const std::lock_guard guard(self->mutex_);
    self->request_stop(call, Outcome::deadline);
  });
}

void Interpreter::run_call(Call& call) {
  Notice notice = perform(call);
  calls_.fetch_add(1, std::memory_order_relaxed);
  finish(call, std::move(notice));
}

Notice Interpreter::perform(Call& call) {
  Notice notice{call.id, Outcome::ok, {}, ""};
  PyObject* arguments = to_python(call.arguments, port_);
  call.arguments = {};  // its arrays are now the task's alone
  PyObject* name = arguments != nullptr
                       ? PyUnicode_FromStringAndSize(call.function.data(), static_cast<Py_ssize_t>(call.function.size()))
                       : nullptr;
  PyObject* result = name != nullptr ? PyObject_CallFunctionObjArgs(home_->dispatch, name, arguments, nullptr) : nullptr;
  Py_XDECREF(name);
  Py_XDECREF(arguments);
  if (result == nullptr) return failure(call.id);
  try {
    notice.value = from_python(result, port_, "result", output_limits());
  } catch (const TooLarge& error) {
    notice.outcome = Outcome::limit;
    notice.value = text_value("output_kb");
    notice.text = error.what();
  } catch (const NotPlain& error) {
    notice.outcome = Outcome::not_plain;
    notice.text = error.what();
  } catch (const std::bad_alloc&) {
    notice.outcome = Outcome::not_plain;
    notice.text = "result needs more memory than there is";
  }
  Py_DECREF(result);
  PyErr_Clear();  // a stop that arrived while the result was read
  return notice;
}

Notice Interpreter::failure(std::uint64_t call_id) {
  Notice notice{call_id, Outcome::failed, {}, ""};
  PyObject* error = PyErr_GetRaisedException();
  const char* limit = exceeded_ ? "memory_mb" : PyErr_GivenExceptionMatches(error, PyExc_RecursionError) ? "recursion" : nullptr;
  if (limit != nullptr) {  // told of from here, as the description is Python code, which may be stopped
    notice.outcome = Outcome::limit;
    notice.value = text_value(limit);
    notice.text = place_of(error);
    Py_DECREF(error);
    return notice;
  }
  if (heap_->stopping) stopped_at_ = place_of(error);
  PyObject* description = PyObject_CallFunctionObjArgs(home_->describe, error, nullptr);
  if (description != nullptr) {
    try {
      notice.value = from_python(description, port_, "error");
    } catch (const NotPlain& refusal) {
      notice.text = refusal.what();
    }
  } else {
    notice.text = std::string(Py_TYPE(error)->tp_name) + ", whose description failed with " + take_error_text();
  }
  Py_XDECREF(description);
  Py_XDECREF(error);
  PyErr_Clear();
  return notice;
}

Limits Interpreter::output_limits() const {
  Limits limits;
  limits.all_bytes = settings_.output_bytes;
  return limits;
}

// Ends the call for the stopper and the watchdog, waits until no stopper has a thread state here, and answers.
void Interpreter::finish(Call& call, Notice notice) {
  PyThreadState* saved = PyEval_SaveThread();
  bool was_stopped = false;
  {
    std::unique_lock lock(mutex_);
    call.ended = true;
    insist_ = false;
    if (call.alarm) Watchdog::instance().clear(*call.alarm);
    was_stopped = call.stopping.has_value();
    if (exceeded_ && notice.outcome != Outcome::limit &&
        !was_stopped)  // it went on without the memory; that it met the limit counts
      notice = {call.id, Outcome::limit, text_value("memory_mb"), ""};
    if (was_stopped) {
      changed_.notify_all();
      changed_.wait(lock, [&] { return !stopper_; });
      if (notice.outcome == Outcome::limit && !notice.text.empty()) call.place = notice.text;
      if (call.place.empty()) call.place = stopped_at_;  // it ended before the stopper could look
      notice = stopped_notice(call);
    }
    heap_->stopping = false;
    current_.reset();
  }
  PyEval_RestoreThread(saved);
  if (was_stopped) PyThreadState_SetAsyncExc(home_->thread_id, nullptr);
  Lender::current()->drain();
  const std::lock_guard lock(mutex_);
  if (!call.answered && call.mailbox) call.mailbox->push(std::move(notice));
}

PyObject* Interpreter::ask(PyObject* name, PyObject* arguments, bool& is_error) {
  // This thread alone changes current_; a VM that ends runs finalizers in a call without a caller.
  if (!current_ || !current_->mailbox) {
    PyErr_SetString(PyExc_RuntimeError, "there is no caller to ask");
    return nullptr;
  }
  Value question;
  try {
    Tuple pair;
    pair.items.push_back(from_python(name, port_, "name"));
    pair.items.push_back(from_python(arguments, port_, "arguments", output_limits()));
    question.data = std::move(pair);
  } catch (const NotPlain& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    return nullptr;
  }
  PyThreadState* saved = PyEval_SaveThread();
  std::optional<std::pair<Value, bool>> answer;
  {
    std::unique_lock lock(mutex_);
    current_->answer.reset();
    if (!current_->stopping) current_->mailbox->push({current_->id, Outcome::ask, std::move(question), ""});
    changed_.wait(lock, [&] { return current_->answer || current_->stopping; });
    answer.swap(current_->answer);
  }
  PyEval_RestoreThread(saved);
  if (!answer) {
    stop_here("the call was stopped while it waited for its host");
    return nullptr;
  }
  is_error = answer->second;
  return to_python(answer->first, port_);
}

}  // namespace walle::vm
