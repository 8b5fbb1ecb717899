#include "vm/host_sandbox.h"

#ifdef __linux__

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "vm/descriptor.h"

namespace walle::vm {

namespace {

// --- Landlock. The numbers are the same on every architecture; older systems' headers lack them.

constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr std::uint64_t kReadFile = 1 << 2, kReadFolder = 1 << 3;
// Rights over files that the first five versions know, by version, and those that later ones do.
constexpr std::uint64_t kFileRights[] = {0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF};
constexpr std::uint64_t kNetworkRights = 0x3;  // bind, connect; since 4
constexpr std::uint64_t kScopes = 0x3;         // abstract sockets and signals; since 6

struct RulesetAttributes {
  std::uint64_t file_rights = 0, network_rights = 0, scopes = 0;
};
struct __attribute__((packed)) PathAttributes {
  std::uint64_t rights = 0;
  std::int32_t folder = -1;
};

int enter_landlock(const std::vector<std::string>& readable) {
  const long version = syscall(kCreateRuleset, nullptr, 0, 1);
  if (version < 1) return 0;
  RulesetAttributes attributes;
  attributes.file_rights = kFileRights[version < 5 ? version - 1 : 4];
  std::size_t size = sizeof attributes.file_rights;
  if (version >= 4) {
    attributes.network_rights = kNetworkRights;
    size += sizeof attributes.network_rights;
  }
  if (version >= 6) {
    attributes.scopes = kScopes;
    size += sizeof attributes.scopes;
  }
  const Descriptor rules(static_cast<int>(syscall(kCreateRuleset, &attributes, size, 0)));
  if (!rules) return 0;
  for (const std::string& path : readable) {
    const Descriptor opened(open(path.c_str(), O_PATH | O_CLOEXEC));
    struct stat status{};
    if (!opened || fstat(opened.get(), &status) != 0) continue;
    const PathAttributes rule{kReadFile | (S_ISDIR(status.st_mode) ? kReadFolder : 0), opened.get()};
    // A file system that Landlock cannot name is not readable then. All else is as it should be.
    static_cast<void>(syscall(kAddRule, rules.get(), 1, &rule, 0));
  }
  return syscall(kRestrictSelf, rules.get(), 0) == 0 ? static_cast<int>(version) : 0;
}

// --- seccomp

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

// Calls that are allowed with any arguments: memory, threads, time, and reading of what is open or may be opened. All others are
// refused, also those that the kernel will have one day.
constexpr int kAllowed[] = {
#ifdef SYS_access
    SYS_access,
#endif
#ifdef SYS_lstat
    SYS_lstat,        SYS_stat,
#endif
#ifdef SYS_poll
    SYS_poll,
#endif
#ifdef SYS_readlink
    SYS_readlink,
#endif
#ifdef SYS_pause
    SYS_pause,
#endif
#ifdef SYS_time
    SYS_time,
#endif
#ifdef SYS_faccessat2
    SYS_faccessat2,
#endif
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
    SYS_brk,          SYS_clock_getres,   SYS_clock_gettime,   SYS_clock_nanosleep,
    SYS_close,        SYS_exit,           SYS_faccessat,       SYS_fstat,
    SYS_fstatfs,      SYS_ftruncate,      SYS_futex,           SYS_getcpu,
    SYS_getcwd,       SYS_getdents64,     SYS_getegid,         SYS_geteuid,
    SYS_getgid,       SYS_getpid,         SYS_getppid,         SYS_getrandom,
    SYS_getrusage,    SYS_gettid,         SYS_gettimeofday,    SYS_getuid,
    SYS_lseek,        SYS_madvise,        SYS_membarrier,      SYS_memfd_create,
    SYS_mmap,         SYS_mprotect,       SYS_mremap,          SYS_munmap,
    SYS_nanosleep,    SYS_ppoll,          SYS_pread64,         SYS_read,
    SYS_readlinkat,   SYS_readv,          SYS_recvmsg,         SYS_restart_syscall,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,    SYS_sched_getaffinity,
    SYS_sched_yield,  SYS_sendmsg,        SYS_set_robust_list, SYS_sigaltstack,
    SYS_statx,        SYS_sysinfo,        SYS_uname,           SYS_write,
    SYS_writev};

constexpr std::uint32_t kOpenFlags =  // all but those that write, create, or need privileges; O_LARGEFILE by its kernel's number
    O_CLOEXEC | O_DIRECTORY | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK | 0100000 | 0400000;
constexpr std::uint32_t kThreadFlags = CLONE_VM | CLONE_THREAD | CLONE_SIGHAND;
constexpr std::uint32_t kNamespaceFlags =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
constexpr std::uint32_t kNewerCalls = 424;  // first call whose number is the same on every architecture (Linux 5.1)
constexpr std::uint32_t kGetTerminal = 0x5401, kCloseOnExec = 0x5451;  // requests of ioctl

// Builder of a filter program. Each rule about a call ends in a verdict; the accumulator holds the call's number at each rule.
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    verdict(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#ifdef __x86_64__
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // the x32 interface
    verdict(SECCOMP_RET_KILL_PROCESS);
#endif
  }

  void allow(int call) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1);
    verdict(SECCOMP_RET_ALLOW);
  }
  // Refuses the call where its first argument is one of the descriptors. A call's first rule, which is followed by others.
  void refuse_for(int call, const std::vector<int>& descriptors) {
    const auto count = static_cast<std::uint8_t>(descriptors.size());
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, static_cast<std::uint8_t>(2 * count + 2));
    load(low_half(0));
    for (const int descriptor : descriptors) {
      add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(descriptor), 0, 1);
      verdict(SECCOMP_RET_ERRNO | EPERM);
    }
    load(offsetof(seccomp_data, nr));
  }
  // Allows the call where the low half of an argument, masked, has one of the values.
  void allow_where(int call, int argument, std::uint32_t mask, std::initializer_list<std::uint32_t> values) {
    const auto count = static_cast<std::uint8_t>(values.size());
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, static_cast<std::uint8_t>(2 * count + 3));
    load(low_half(argument));
    add(BPF_ALU | BPF_AND | BPF_K, mask);
    for (const std::uint32_t value : values) {
      add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      verdict(SECCOMP_RET_ALLOW);
    }
    verdict(SECCOMP_RET_ERRNO | EPERM);
  }
  // Allows the call where two arguments have these values, all 64 bits of them.
  void allow_where_both(int call, int first, std::uint32_t first_value, int second, std::uint32_t second_value) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 10);
    const std::pair<std::size_t, std::uint32_t> checks[] = {
        {low_half(first), first_value}, {high_half(first), 0}, {low_half(second), second_value}, {high_half(second), 0}};
    std::uint8_t left = 8;
    for (const auto& [offset, value] : checks) {
      load(offset);
      add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, static_cast<std::uint8_t>(left - 1));
      left = static_cast<std::uint8_t>(left - 2);
    }
    verdict(SECCOMP_RET_ALLOW);
    verdict(SECCOMP_RET_ERRNO | EPERM);
  }

  // All other calls are refused. Libraries have substitutes for the newer ones (clone3, openat2, close_range), which they use
  // where the kernel does not know the call.
  bool install() {
    add(BPF_JMP | BPF_JGE | BPF_K, kNewerCalls, 0, 1);
    verdict(SECCOMP_RET_ERRNO | ENOSYS);
    verdict(SECCOMP_RET_ERRNO | EPERM);
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
  }

 private:
  static std::size_t low_half(int argument) { return offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(argument); }
  static std::size_t high_half(int argument) { return low_half(argument) + 4; }
  void add(int operation, std::uint32_t value, std::uint8_t if_true = 0, std::uint8_t if_false = 0) {
    code_.push_back({static_cast<std::uint16_t>(operation), if_true, if_false, value});
  }
  void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
  void verdict(std::uint32_t verdict) { add(BPF_RET | BPF_K, verdict); }

  std::vector<sock_filter> code_;
};

// --- Capabilities and limits, for where one of the layers is missing or has an error.

// Where the device or the cloud runs as root, its libraries may be readable to root alone; what may be read is Landlock's affair.
constexpr std::uint32_t kKeptCapabilities = 1U << CAP_DAC_READ_SEARCH;

void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3]{};
  if (syscall(SYS_capget, &header, sets) != 0) return;
  sets[0].effective &= kKeptCapabilities;
  sets[0].permitted &= kKeptCapabilities;
  sets[1].effective = sets[1].permitted = 0;
  for (auto& set : sets) set.inheritable = 0;
  static_cast<void>(syscall(SYS_capset, &header, sets));
}

constexpr rlim_t kMaxOpenFiles = 4'096;  // a task has 1,000 resources, whose descriptors are closed once they are mapped
constexpr rlim_t kMaxFileBytes = rlim_t{1} << 30;  // limit of a result that crosses as memory: the only files that a host makes

// Lowers a limit; never raises it. The type of a resource is the C library's own.
template <class Resource>
bool limit(Resource resource, rlim_t most) {
  rlimit found{};
  if (getrlimit(resource, &found) != 0) return false;
  const rlimit lower{std::min(found.rlim_cur, most), std::min(found.rlim_max, most)};
  return setrlimit(resource, &lower) == 0;
}

// Calls of programs that read, write, duplicate and close files, by their descriptor.
// A descriptor that is closed would be the number of the next file, which could then not be read.
constexpr int kCallsBesidesWriting[] = {SYS_read, SYS_readv, SYS_pread64, SYS_close, SYS_fcntl, SYS_ioctl};
constexpr int kWriteCalls[] = {SYS_write, SYS_writev};
constexpr std::size_t kMaxReserved = 16;

bool enter_seccomp(const std::vector<int>& reserved, const std::vector<int>& write_only) {
  if (kArchitecture == 0 || reserved.size() + write_only.size() > kMaxReserved) return false;
  std::vector<int> unreadable = reserved;
  unreadable.insert(unreadable.end(), write_only.begin(), write_only.end());
  const auto process = static_cast<std::uint32_t>(getpid());
  Filter filter;
  for (const int call : kCallsBesidesWriting) filter.refuse_for(call, unreadable);
  for (const int call : kWriteCalls) filter.refuse_for(call, reserved);
  for (const int call : kAllowed) filter.allow(call);
  filter.allow_where(SYS_openat, 2, ~kOpenFlags, {0});
#ifdef SYS_open
  filter.allow_where(SYS_open, 1, ~kOpenFlags, {0});
#endif
  filter.allow_where(SYS_clone, 0, kThreadFlags | kNamespaceFlags, {kThreadFlags});
  filter.allow_where(SYS_prctl, 0, ~0U, {PR_SET_NAME});
  filter.allow_where(SYS_fcntl, 1, ~0U, {F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC, F_ADD_SEALS, F_GET_SEALS});
  filter.allow_where(SYS_ioctl, 1, ~0U, {kGetTerminal, kCloseOnExec});
  // abort() only: neither a signal to others nor an end for which no call is known (exit_group is not allowed either).
  filter.allow_where_both(SYS_tgkill, 0, process, 2, SIGABRT);
  filter.allow_where_both(SYS_prlimit64, 0, 0, 2, 0);  // reads this process's limits
  return filter.install();
}

}  // namespace

SandboxLayers enter_sandbox(const std::vector<std::string>& readable, const std::vector<int>& reserved,
                            std::uint64_t max_memory_bytes, const std::vector<int>& write_only) {
  SandboxLayers layers;
  // Where memory runs out, the system is to end the host and not the device: memory files count for neither.
  if (const Descriptor score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)); score)
    static_cast<void>(write(score.get(), "1000", 4) == 4);
  layers.not_dumpable = limit(RLIMIT_CORE, 0) && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
  static_cast<void>(limit(RLIMIT_NOFILE, kMaxOpenFiles));
  static_cast<void>(limit(RLIMIT_FSIZE, kMaxFileBytes));
  if (max_memory_bytes > 0) static_cast<void>(limit(RLIMIT_DATA, max_memory_bytes));
  drop_capabilities();
  layers.no_new_privileges = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  if (!layers.no_new_privileges) return layers;  // the others need it
  layers.landlock = enter_landlock(readable);
  layers.seccomp = enter_seccomp(reserved, write_only);
  return layers;
}

}  // namespace walle::vm

#else

namespace walle::vm {

SandboxLayers enter_sandbox(const std::vector<std::string>&, const std::vector<int>&, std::uint64_t, const std::vector<int>&) {
  return {};
}

}  // namespace walle::vm

#endif
