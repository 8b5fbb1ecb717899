// The VM host's process, as its device sees it from outside. Somebody else takes its exit status, later.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "vm/descriptor.h"

namespace walle::vm {

// How a process has ended.
struct ProcessEnd {
  int signal = 0;  // signal that ended the process, 0 for none
  int status = 0;  // exit status
};

// Whether code of the process may have caused its end. Other signals come from the system, which lacks memory, or from people;
// or from code that took all memory.
bool is_own_fault(const ProcessEnd& end);
// Returns "exited with status N" or "was ended by SIGNAL".
std::string describe(const ProcessEnd& end);

class HostProcess {
 public:
  HostProcess() = default;
  // To be made once, from the parent's process.
  explicit HostProcess(pid_t process);

  explicit operator bool() const noexcept { return process_ > 0; }
  // A descriptor that is readable once the process has ended; -1 where the system has none.
  int handle() const noexcept { return handle_.get(); }
  void kill() const noexcept;
  // Returns how it has ended; nothing while it runs, or where its status was taken.
  std::optional<ProcessEnd> end() const noexcept;
  // Whether it runs no longer.
  bool has_ended() const noexcept;

 private:
  pid_t process_ = 0;
  Descriptor handle_;  // a pidfd
};

}  // namespace walle::vm
