// A VM as its task and its callers know it: a PyInterpreterState with its own GIL on a thread of its own (§4.3, Fig. 6), for as
// long as the VM lives in that home. Calls queue up and run in order; each can be stopped from outside; the answers go to
// mailboxes.
#pragma once
#include <Python.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "vm/channel.h"
#include "vm/heap.h"
#include "vm/mailbox.h"
#include "vm/watchdog.h"

namespace walle::vm {

class Home;

// What a VM is made with. `config` is the task as walle.engine_ext.vm.dispatch takes it.
struct Settings {
  std::string name;
  Value config;
  std::unordered_set<std::string> task_files;  // file names of the task's own code, as its tracebacks show them
  std::chrono::milliseconds grace{250};        // from the wish to stop to giving the VM up
  std::int64_t memory_bytes = 0;               // 0: no limit
  std::int64_t output_bytes = 0;               // of a result, and of a question to the caller; 0: no limit
};

// How long a VM's thread looks for a call before it sleeps.
inline constexpr std::chrono::microseconds kAttentive{30};

class Interpreter : public std::enable_shared_from_this<Interpreter> {
 public:
  // Threads that are given up and still busy; no VM is made while there are this many.
  static constexpr int kMaxAbandoned = 16;
  static constexpr int kMaxLost = 64;

  // Throws std::runtime_error while the process exits, or too many abandoned threads are still busy.
  static std::shared_ptr<Interpreter> start(Settings settings, const ArrayPort& port);

  // From any thread, without any GIL. The deadline counts from when the call begins to run.
  void submit(std::shared_ptr<Mailbox> mailbox, std::uint64_t call_id, std::string function, Value arguments,
              std::optional<std::chrono::nanoseconds> deadline);
  // Stops the call, or takes it off the queue; its notice says cancelled. Nothing happens where it has ended.
  void cancel(std::uint64_t call_id);
  // The caller's answer to an ask of the running call.
  void answer(std::uint64_t call_id, Value value, bool is_error);
  // Refuses what comes, answers what waits, stops what runs, and leaves the home. Returns at once.
  void close();
  // Whether the VM has left its home within the time, which is then another's or destroyed.
  bool join(std::chrono::nanoseconds timeout);

  bool alive() const;
  // Whether it was given up, its thread maybe gone since.
  bool was_given_up() const { return was_given_up_.load(std::memory_order_relaxed); }
  // Why its home was given up where what the task did there could not be undone, else ""; and the memory that this costs the
  // process for good. Both are there once it has left.
  std::string spoilt() const;
  std::int64_t lost_bytes() const;
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  double create_ms() const { return create_ms_.load(std::memory_order_relaxed); }

  // On the VM's thread, under its GIL, from within a call: puts a question to the caller and waits for the answer without the
  // GIL. A new reference, or null with a Python error set; `is_error` tells whether the answer is an error's description.
  PyObject* ask(PyObject* name, PyObject* arguments, bool& is_error);
  // The VM that this thread belongs to, or null; and, on its thread, where it lives.
  static Interpreter* here();
  Home& home() const { return *home_; }

  // On the VM's thread, as Stopped is made to be raised: where the task has had its time to clean up, the next Stopped is set
  // already, so that whatever catches this one meets that one at its next jump or call.
  void raise_again();

  // On the VM's thread, under its GIL: stops the running call for a limit that it broke. Raises Stopped.
  void break_limit(const std::string& limit);
  // On the VM's thread, from within an allocator: as that, later and elsewhere.
  void exceed_memory();
  // On the VM's thread, under its GIL: waits without it, and no longer than the call may run; false with Stopped raised then.
  bool sleep(std::chrono::nanoseconds time);
  // On the VM's thread, as CPython collects garbage, which it does within some C functions that run for long: where the VM was
  // given up, the thread stays here for good, so that it takes no processor.
  void rest_if_given_up();

  // On the VM's thread: what it has taken of memory.
  std::int64_t used_bytes() const { return heap_->used_bytes(); }

  static int abandoned();
  // Threads that rest for good, each with its interpreter.
  static int lost();
  // For the exiting process, from the main interpreter's thread: closes every VM, waits for the threads, and cuts those whose
  // call does not stop in time loose from the runtime; returns how many. No VM is made afterwards.
  static int shut_down(std::chrono::nanoseconds timeout);

  // Around a fork, on the thread that forks. The VMs of the child have ended.
  static void before_fork();
  static void after_fork(bool is_child);

  // On the home's thread. Whether the VM is still to be: it may have been closed before it began.
  bool is_wanted() const;
  // Says why there is no home for it.
  void refuse(const std::string& why);
  // Runs its calls until it is closed, and wipes the home; returns why the home cannot be another's, or "". The task is charged
  // with it where the task ran at all and its own memory limit, not the system's, was what wiping met.
  std::string live(Home& home);
  // Says that the home is another's now, or about to end.
  void leave();

 private:
  struct Call;
  enum class State : std::uint8_t { starting, open, closing, given_up, ended, cut_loose };

  Interpreter(Settings settings, const ArrayPort& port)
      : settings_(std::move(settings)), port_(port), made_at_(Watchdog::Clock::now()) {}

  bool move_in();
  std::string move_out();
  bool wipe_once(std::string& failed);
  std::shared_ptr<Call> next_call();
  void run_call(Call& call);
  Notice perform(Call& call);
  Notice failure(std::uint64_t call_id);
  Limits output_limits() const;
  void finish(Call& call, Notice notice);
  void end_in_child();
  bool ended_or_stuck(Watchdog::Clock::time_point until);
  void cut_loose();

  // With mutex_ held.
  void make_current(const std::shared_ptr<Call>& call);
  void request_stop(const std::shared_ptr<Call>& call, Outcome reason, const std::string& limit = "");
  void nudge(const std::shared_ptr<Call>& call);
  void refuse_queued(const std::string& why);
  void give_up(Call& call);
  static Notice stopped_notice(const Call& call);
  static void forget_abandoned();
  static void forget_all_threads();

  void press(const std::shared_ptr<Call>& call);  // the stopper thread
  void stop_here(const char* why);
  std::string place();
  std::string place_of(PyObject* error) const;

  const Settings settings_;
  const ArrayPort port_;
  const Watchdog::Clock::time_point made_at_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::starting;
  std::string broken_;    // why it takes no calls
  Home* home_ = nullptr;  // while it lives there
  std::deque<std::shared_ptr<Call>> queue_;
  std::atomic<bool> has_calls_ = false;  // may be true where the queue has become empty
  std::shared_ptr<Call> current_;
  std::shared_ptr<Heap> heap_;          // while it lives in a home
  std::atomic<bool> exceeded_ = false;  // the running call has met the memory limit
  bool resting_ = false;
  std::string spoilt_;
  std::int64_t lost_bytes_ = 0;
  bool is_out_of_memory_ = false;  // as the last wiping failed
  bool is_lowered_ = false;        // its thread has the lowest priority
  int nudges_ = 0;
  std::string stopped_at_;  // the place of the task that the error of a stopped call came through
  int answered_nudge_ = 0;
  int answers_ = 0;
  pid_t system_thread_ = 0;           // what the system calls the VM's thread
  std::atomic<bool> insist_ = false;  // the running call is to meet Stopped wherever it goes
  pthread_t stopper_handle_ = {};
  bool stopper_ = false;  // a stopper thread has a thread state in this interpreter
  std::atomic<bool> was_given_up_{false};
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<double> create_ms_{0};
};

}  // namespace walle::vm
