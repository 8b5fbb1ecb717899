// Pool of the interpreters that VMs run in: idle ones, and those whose VM is about to end. It also holds what every new
// interpreter boots with.
#pragma once
#include <Python.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "vm/value.h"

namespace walle::vm {

class Interpreter;
class TaskVm;

// Marshalled code that finds `paths` and `find_module(name)` in its globals and defines `start(config)`, `dispatch(name, args)`,
// `describe(error)`, `reset()`, `freeze()` and the exception class `Stopped` there.
struct Boot {
  std::string code;
  Value paths;
};

struct InterpreterCounts {
  std::uint64_t created = 0;
  std::uint64_t vms = 0;        // VMs that were given an interpreter
  std::uint64_t recycled = 0;   // resets after which the interpreter was kept
  std::uint64_t discarded = 0;  // interpreters that could not be reset, or booted; the process's end does not count
  std::uint64_t threads = 0;    // interpreters that have not ended
  std::uint64_t idle = 0;       // interpreters that wait for a VM now
  std::string discard_reason;   // reason for the last discarded one
};

class InterpreterPool {
 public:
  // A discarded interpreter keeps its memory and one of the process's about thousand keys of thread-local storage; beyond this
  // number no new one is created.
  static constexpr std::uint64_t kMaxDiscarded = 512;

  // The pool of the process; never destroyed, because threads of abandoned VMs may reach it while the process exits.
  static InterpreterPool& instance();

  // Only the first call has an effect.
  void set_boot(Boot boot, const ArrayPort& port);
  const Boot& boot() const { return boot_; }  // set before the first interpreter is created
  const ArrayPort& port() const { return *port_; }
  // Registers (code, file, folders or None) as what `find_module` returns for this name; it returns None for other names.
  void register_module(const std::string& name, Value module);
  std::shared_ptr<const Value> find_module(std::string_view name) const;

  // Gives the VM an interpreter: an idle one, else one that is being released, else a new one. Throws std::runtime_error where no
  // thread can be created, or kMaxDiscarded interpreters were discarded.
  void acquire(const std::shared_ptr<TaskVm>& vm);
  // From any thread: the interpreter will soon be free for another VM.
  void mark_releasing(Interpreter& interpreter);
  // From any thread: it will not, because its VM was abandoned or it is discarded.
  void cancel_release(Interpreter& interpreter);
  InterpreterCounts counts() const;

  // The next five run on the interpreter's own thread.
  void count_created();
  // After a reset: gives the interpreter to a waiting VM, or keeps it as an idle one.
  void put_back(Interpreter& interpreter);
  // The interpreter was not reset, and ends.
  void discard(Interpreter& interpreter, const std::string& reason);
  // Blocks until the interpreter gets its next VM; returns null once the pool is closed.
  std::shared_ptr<TaskVm> next_vm(Interpreter& interpreter);
  void remove(Interpreter& interpreter);

  // For the exiting process: ends the idle interpreters and accepts no further VM.
  void close();
  // Blocks until every interpreter that is not detached has ended, or the time is over.
  void wait_all(std::chrono::nanoseconds timeout);
  void mark_detached(Interpreter& interpreter);
  // Around a fork, on the thread that forks. The child begins with an empty pool.
  void before_fork();
  void after_fork(bool is_child);

 private:
  InterpreterPool() = default;
  // With mutex_ held.
  void create_for(const std::shared_ptr<TaskVm>& vm);
  std::string create_for_unserved(std::vector<std::shared_ptr<TaskVm>>& refused);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Boot boot_;
  const ArrayPort* port_ = nullptr;
  std::map<std::string, std::shared_ptr<const Value>, std::less<>> modules_;  // by name
  std::vector<Interpreter*> all_;                                             // all that have not ended
  std::vector<Interpreter*> idle_;                                            // the last used is taken first: its memory is warm
  std::deque<std::shared_ptr<TaskVm>> waiting_;  // at most one for each interpreter that is being released
  std::size_t releasing_ = 0;
  bool closed_ = false;
  InterpreterCounts counts_;
};

}  // namespace walle::vm
