#include "vm/host_process.h"

#include <signal.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace walle::vm {

namespace {

std::string signal_name(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGILL: return "SIGILL";
    case SIGFPE: return "SIGFPE";
    case SIGABRT: return "SIGABRT";
    case SIGSYS: return "SIGSYS";
    case SIGTRAP: return "SIGTRAP";
    case SIGKILL: return "SIGKILL";
    case SIGTERM: return "SIGTERM";
    default: return "signal " + std::to_string(signal);
  }
}

// Returns false where it is not a child whose status can be taken.
bool peek(pid_t process, siginfo_t& info) {
  return waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

bool is_own_fault(const ProcessEnd& end) {
  constexpr std::array kCrashes = {0, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
  return std::find(kCrashes.begin(), kCrashes.end(), end.signal) != kCrashes.end();
}

std::string describe(const ProcessEnd& end) {
  if (end.signal == 0) return "exited with status " + std::to_string(end.status);
  return "was ended by " + signal_name(end.signal);
}

HostProcess::HostProcess(pid_t process) : process_(process) {
#ifdef SYS_pidfd_open
  handle_ = above_standard(Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0))));
#endif
}

void HostProcess::kill() const noexcept {
  if (process_ <= 0) return;
#ifdef SYS_pidfd_send_signal
  if (handle_) {
    syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0);
    return;
  }
#endif
  siginfo_t info = {};
  if (peek(process_, info)) ::kill(process_, SIGKILL);  // nobody has taken its status yet: the number is still its own
}

std::optional<ProcessEnd> HostProcess::end() const noexcept {
  siginfo_t info = {};
  if (process_ <= 0 || !peek(process_, info) || info.si_pid != process_) return std::nullopt;
  if (info.si_code == CLD_EXITED) return ProcessEnd{0, info.si_status};
  return ProcessEnd{info.si_status, 0};
}

bool HostProcess::has_ended() const noexcept {
  siginfo_t info = {};
  return process_ > 0 && (!peek(process_, info) || info.si_pid == process_);
}

}  // namespace walle::vm
