#include "vm/crash_record.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "vm/shared_memory.h"

namespace walle::vm {

namespace {

constexpr std::size_t kRecordBytes = 4096;
constexpr std::size_t kStackBytesOfHandler = std::size_t{64} << 10;
constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};

std::atomic<std::uint64_t>* crash_memory = nullptr;

void* map_record(int fd, int protection) {
  void* mapped = mmap(nullptr, kRecordBytes, protection, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of the crash record");
  return mapped;
}

// The signal's default action follows: the handler is installed for one signal, and the faulting instruction runs again.
void record_crash(int signal) {
  if (const std::uint64_t owner = crash_owner(); owner != 0) crash_memory->store(owner, std::memory_order_relaxed);
  if (signal == SIGABRT) raise(signal);
}

}  // namespace

std::uint64_t& crash_owner() noexcept {
  static thread_local std::uint64_t owner = 0;
  return owner;
}

CrashRecord::CrashRecord() : memory_(create_shared_memory("walle-crash")) {
  if (ftruncate(memory_.get(), kRecordBytes) != 0 ||
      fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw std::system_error(errno, std::generic_category(), "the crash record");
  mapped_ = map_record(memory_.get(), PROT_READ);
}

CrashRecord::~CrashRecord() { munmap(const_cast<void*>(mapped_), kRecordBytes); }

std::uint64_t CrashRecord::owner() const noexcept {
  return static_cast<const std::atomic<std::uint64_t>*>(mapped_)->load(std::memory_order_relaxed);
}

void install_crash_handlers(const Descriptor& memory) {
  crash_memory = static_cast<std::atomic<std::uint64_t>*>(map_record(memory.get(), PROT_READ | PROT_WRITE));
  crash_owner() = 0;
  struct sigaction action = {};
  action.sa_handler = record_crash;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const int signal : kFatalSignals) sigaction(signal, &action, nullptr);
}

CrashStack::CrashStack() {
  if (crash_memory == nullptr) return;
  void* mapped = mmap(nullptr, kStackBytesOfHandler, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return;  // an overflow of the stack then leaves no record
  stack_ = mapped;
  stack_t stack = {};
  stack.ss_sp = stack_;
  stack.ss_size = kStackBytesOfHandler;
  sigaltstack(&stack, nullptr);
}

CrashStack::~CrashStack() {
  if (stack_ == nullptr) return;
  stack_t none = {};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(stack_, kStackBytesOfHandler);
}

}  // namespace walle::vm
