// Where VMs live: one PyInterpreterState with its own GIL and the one thread that makes, uses and ends it (§4.3, Fig. 6). VMs
// follow one another in a home: it is wiped when one leaves, and given up only where that fails. Homes that are free wait for the
// next VM.
#pragma once
#include <Python.h>
#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vm/channel.h"
#include "vm/pristine.h"

namespace walle::vm {

class Interpreter;

// What every home begins with: marshalled code that finds `paths` and `find_module(name)` in its globals and leaves
// `start(config)`, `dispatch(name, args)`, `describe(error)`, `wipe()` and the exception class `Stopped` there.
struct Boot {
  std::string code;
  Value paths;
};

struct HomeCounts {
  std::uint64_t made = 0;       // interpreters
  std::uint64_t lived_in = 0;   // VMs that had one
  std::uint64_t recycled = 0;   // wiped and kept
  std::uint64_t destroyed = 0;  // could not be wiped, or made ready; the process's end does not count
  std::uint64_t threads = 0;    // homes' that have not ended
  std::uint64_t spare = 0;      // wait for a VM now
  std::string last_reason;      // why the last one was destroyed
};

class Home {
 public:
  // The first one given stays.
  static void set_boot(Boot boot, const ArrayPort& port);

  // What `find_module` gives for this name from now on: (code, file, folders or None); it gives None for others.
  static void carry(const std::string& name, Value module);
  // So many are left as they are, with their memory, and no new one is made: a process has about a thousand keys of
  // thread-local storage, of which each keeps one.
  static constexpr std::uint64_t kMostDestroyed = 512;
  // Gives the VM a home: a spare one, else one that is being left, else a new one. Throws std::runtime_error where no thread can
  // be had, or kMostDestroyed were destroyed.
  static void settle(const std::shared_ptr<Interpreter>& vm);
  // From any thread: the home will soon be another's; or will not, as its VM was given up.
  static void expect(Home& home);
  static void despair(Home& home);
  static HomeCounts counts();
  // For the exiting process: lets the spare ones end, and takes no VM any more.
  static void close_all();
  // Returns once every home that was not cut loose has ended, or the time is over.
  static void wait_all(std::chrono::nanoseconds timeout);
  static void mark_cut_loose(Home& home);
  // Around a fork, on the thread that forks. The child begins with no homes.
  static void before_fork();
  static void after_fork(bool is_child);

  // The home's thread, and its interpreter while there is one.
  PyThreadState* thread = nullptr;
  pthread_t thread_handle = {};
  unsigned long thread_id = 0;
  PyObject* start = nullptr;
  PyObject* dispatch = nullptr;
  PyObject* describe = nullptr;
  PyObject* stopped = nullptr;
  Pristine pristine;

  // On the home's thread, under its GIL. One attempt at letting go of all that the last VM left and putting back what it changed;
  // runs its finalizers. Why it has to be tried again, or "".
  std::string wipe_once(bool& is_out_of_memory);
  // On the home's thread, under its GIL, once wiping is through. Why the home cannot be another's, or "".
  std::string settle_down();
  // On the home's thread, under its GIL: a context for the next VM's variables.
  void enter_context();

 private:
  Home() = default;
  void run(std::shared_ptr<Interpreter> vm);
  bool boot(std::string& error);
  void leave_context();
  void end();
  static void make(const std::shared_ptr<Interpreter>& vm);
  static std::string make_for_excess(std::vector<std::shared_ptr<Interpreter>>& refused);
  void offer();
  void condemn(const std::string& reason);
  std::shared_ptr<Interpreter> next_vm();

  PyObject* wipe_ = nullptr;
  PyObject* freeze_ = nullptr;  // gc.freeze
  std::size_t frozen_ = 0;      // objects when it was last called
  PyObject* context_ = nullptr;
  std::shared_ptr<Interpreter> next_;  // guarded by the stable's mutex
  bool is_leaving_ = false;            // likewise: counted among those that are being left
  bool cut_loose_ = false;             // likewise
};

// Type and message of the Python error that is set, which is then cleared.
std::string take_error_text();

}  // namespace walle::vm
