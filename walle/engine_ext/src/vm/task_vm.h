// Task VM: the interpreter of one task at a time, with its own GIL and its own thread (§4.3, Fig. 6). Calls queue up and run in
// order; each can be stopped from outside; results go to reply queues.
#pragma once
#include <Python.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "vm/crash_record.h"
#include "vm/heap.h"
#include "vm/value.h"
#include "vm/virtual_machine.h"
#include "vm/watchdog.h"

namespace walle::vm {

class Interpreter;

// A change of a VM's state.
struct VmChange {
  enum class Kind : std::uint8_t {
    opened,     // create_ms
    rejecting,  // text: why it could not start; `ended` follows
    abandoned,
    ended,  // text: why it could not start, else ""; reset_failure, leaked_bytes
  };
  Kind kind = Kind::opened;
  std::string text;
  std::string reset_failure;
  std::int64_t leaked_bytes = 0;
  double create_ms = 0;
};

// Settings of a VM. `config` is the task in the form that walle.engine_ext.vm.dispatch takes.
struct Settings {
  std::string name;
  Value config;
  std::unordered_set<std::string> task_files;  // file names of the task's own code, as its tracebacks show them
  std::chrono::milliseconds grace{250};        // time from the stop request until the VM is abandoned
  std::int64_t memory_bytes = 0;               // 0: no limit
  std::int64_t output_bytes = 0;               // limit of a result, and of a callback's arguments; 0: no limit
  PlaceEntry* place_entry = nullptr;           // entry in the host's crash record; null in the device's own process
  // Called at each change of state, from any thread, with the VM locked: it must neither block nor call the VM.
  std::function<void(const VmChange&)> on_change;
};

// How long a VM's thread spins for its next call before it blocks.
inline constexpr std::chrono::microseconds kSpinTime{30};

// How long the deadline of one call may stand still, in all, while models and library modules are loaded.
inline constexpr std::chrono::seconds kLoadTime{30};
// How long the import of library modules may delay a stop.
inline constexpr std::chrono::seconds kImportTime{5};

class TaskVm final : public VirtualMachine, public std::enable_shared_from_this<TaskVm> {
 public:
  // No VM is created while this many abandoned threads are still busy, or this many are retired.
  static constexpr int kMaxAbandoned = 16;
  static constexpr int kMaxRetired = 64;

  // Throws std::runtime_error while the process exits, or at one of the two limits.
  static std::shared_ptr<TaskVm> start(Settings settings, const ArrayPort& port);

  // --- From any thread, without any GIL.

  void submit(std::shared_ptr<ReplySink> replies, std::uint64_t call_id, std::string function, Value arguments,
              std::optional<std::chrono::nanoseconds> deadline) override;
  void cancel(std::uint64_t call_id) override;
  void answer(std::uint64_t call_id, Value value, bool is_error) override;
  void close() override;
  // Once the VM has ended, its interpreter is another VM's, idle, or discarded.
  bool join(std::chrono::nanoseconds timeout) override;

  bool alive() const override;
  bool was_abandoned() const override { return was_abandoned_.load(std::memory_order_relaxed); }
  bool was_crashed() const override { return false; }
  bool was_suspected() const override { return false; }
  TaskPlace last_place() const override { return {}; }
  std::string reset_failure() const override;
  std::int64_t leaked_bytes() const override;
  std::uint64_t calls() const override { return calls_.load(std::memory_order_relaxed); }
  double create_ms() const override { return create_ms_.load(std::memory_order_relaxed); }

  // --- On the VM's thread, under its GIL unless stated otherwise.

  // The VM that this thread runs, or null.
  static TaskVm* current();
  Interpreter& interpreter() const { return *interpreter_; }

  // Has the caller run one of its callbacks, and waits for the result without the GIL. Returns a new reference, or null with a
  // Python error set; `is_error` tells whether the result describes an error.
  PyObject* call_back(PyObject* name, PyObject* arguments, bool& is_error);
  // Around the loading of a model or of library modules: the call's deadline stands still, for `longest` at most and kLoadTime in
  // one call. They nest.
  void begin_loading(std::chrono::nanoseconds longest = kLoadTime);
  void end_loading();
  // Around the import of library modules, which must not end half-way: a stop waits for its end, kImportTime at most, and memory
  // and recursion have a margin. Both return false with Stopped raised where the call was stopped. They do not nest.
  bool begin_import();
  bool end_import();
  bool is_importing() const { return is_importing_; }
  // Whether the import was stopped or refused memory all the same.
  bool import_was_cut() const;
  // Called as each Stopped object is created. In the second half of the grace period it schedules the next Stopped already, so
  // that code that catches this one gets that one at its next jump or call.
  void reraise();
  // Records in the host's crash record that the task enters a phase, or its code ("" keeps the phase).
  void enter_phase(std::string_view phase, PyObject* code);
  // Stops the running call for the limit that it exceeded. Raises Stopped.
  void exceed_limit(const std::string& limit);
  // From within an allocator: requests the stop for the memory limit, which another thread carries out.
  void exceed_memory();
  // Sleeps without the GIL until the time is over or the call is stopped; returns false with Stopped raised in the latter case.
  bool sleep(std::chrono::nanoseconds time);
  // Called when CPython collects garbage, which it does within some long C functions: parks the thread of an abandoned VM
  // permanently, so that it uses no processor.
  void park_if_abandoned();
  std::int64_t used_bytes() const { return heap_->used_bytes(); }

  // --- Of the whole process.

  // Threads of abandoned VMs that are still busy.
  static int abandoned_threads();
  // Threads that are parked permanently, each with its interpreter.
  static int retired_threads();
  // For the exiting process, from the main interpreter's thread: closes every VM, waits for the threads, and detaches those whose
  // call does not stop in time from the runtime. Returns how many those are. No VM can be created afterwards.
  static int shut_down(std::chrono::nanoseconds timeout);
  // Around a fork, on the thread that forks. In the child every VM has ended.
  static void before_fork();
  static void after_fork(bool is_child);

  // --- For the interpreter, on its thread, without its GIL.

  // False where the VM was closed before it began.
  bool is_starting() const;
  // Ends the VM without an interpreter, for the given reason.
  void fail_start(const std::string& why);
  // Runs the task's calls until the VM is closed, then resets the interpreter. Returns why the interpreter cannot be used again,
  // or "". That counts against the task where the task has run and its own memory limit, not the system's, made the reset fail.
  std::string run_in(Interpreter& interpreter);
  // Marks the VM as ended, once its interpreter is another VM's or about to end.
  void end();

 private:
  struct Call;
  enum class State : std::uint8_t { starting, open, closing, abandoned, ended, detached };

  TaskVm(Settings settings, const ArrayPort& port)
      : settings_(std::move(settings)), port_(port), created_at_(Watchdog::Clock::now()) {}

  bool start_task();
  std::string reset_interpreter();
  bool reset_once(std::string& failure);
  std::shared_ptr<Call> next_call();
  void run_call(Call& call);
  Reply perform(Call& call);
  Reply describe_failure(std::uint64_t call_id);
  Limits output_limits() const;
  void finish(Call& call, Reply reply);
  void end_in_child();
  bool ended_or_stuck(Watchdog::Clock::time_point until);
  void detach();

  // With mutex_ held.
  void make_current(const std::shared_ptr<Call>& call);
  void set_deadline(const std::shared_ptr<Call>& call, Watchdog::Clock::time_point when);
  void set_abandonment(const std::shared_ptr<Call>& call, Watchdog::Clock::time_point when);
  bool is_stop_deferred() const { return is_importing_ && Watchdog::Clock::now() < import_until_; }
  void request_stop(const std::shared_ptr<Call>& call, Outcome reason, const std::string& limit = "");
  void request_collection(const std::shared_ptr<Call>& call);
  void reject_queued(const std::string& why);
  void abandon(Call& call);
  void report(VmChange change) const;

  static Reply stopped_reply(const Call& call);
  static void count_abandoned_end();
  static void clear_thread_counts();

  void run_stopper(const std::shared_ptr<Call>& call);
  void raise_stopped(const char* why);
  std::string current_place();
  std::string place_of(PyObject* error) const;

  const Settings settings_;
  const ArrayPort port_;
  const Watchdog::Clock::time_point created_at_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::starting;
  std::string reject_reason_;           // why it accepts no calls
  Interpreter* interpreter_ = nullptr;  // null once the VM has ended
  std::deque<std::shared_ptr<Call>> queue_;
  std::atomic<bool> has_calls_ = false;  // true at times where the queue has become empty
  std::shared_ptr<Call> current_;
  std::shared_ptr<Heap> heap_;                     // once it has an interpreter
  std::atomic<bool> has_exceeded_memory_ = false;  // true if the running call has
  std::string reset_failure_;
  std::int64_t leaked_bytes_ = 0;
  bool is_out_of_memory_ = false;     // true if the last attempt to reset was
  bool has_lowest_priority_ = false;  // true once its thread's is lowered
  std::string failed_at_;             // the task's line that the call's error came through, under the VM's GIL
  bool is_parked_ = false;
  int collections_requested_ = 0;
  int last_request_seen_ = 0;               // value of collections_requested_ at the last requested collection
  int collections_seen_ = 0;                // requested ones that took place
  pid_t system_thread_ = 0;                 // the system's id of the VM's thread
  std::atomic<bool> is_reraising_ = false;  // see reraise()
  int loading_depth_ = 0;
  Watchdog::Clock::time_point loading_since_;
  std::chrono::nanoseconds extension_{0};   // time added to the deadline for what is being loaded
  std::atomic<bool> is_importing_ = false;  // this one and the next two are guarded by mutex_
  Watchdog::Clock::time_point import_until_;
  bool was_stopped_in_import_ = false;
  bool had_exceeded_memory_ = false;  // state before the import, like the next three
  std::int64_t outer_memory_limit_ = 0;
  int outer_recursion_limit_ = 0;
  bool is_outer_collecting_ = false;
  pthread_t stopper_handle_ = {};
  bool has_stopper_ = false;  // a stopper thread has a thread state in this interpreter
  std::atomic<bool> was_abandoned_{false};
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<double> create_ms_{0};
};

}  // namespace walle::vm
