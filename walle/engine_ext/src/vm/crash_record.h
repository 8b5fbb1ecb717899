// Crash record: shared memory in which the VM host's handler of fatal signals writes whose thread crashed. The host's owner reads
// it after the host has ended.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vm/descriptor.h"

namespace walle::vm {

// The id of the VM whose code this thread runs, 0 for none.
std::uint64_t& crash_owner() noexcept;

class CrashRecord {
 public:
  // Creates the memory, whose size is sealed. Throws std::system_error.
  CrashRecord();
  ~CrashRecord();
  CrashRecord(const CrashRecord&) = delete;
  CrashRecord& operator=(const CrashRecord&) = delete;

  int fd() const noexcept { return memory_.get(); }
  // The id of the VM that crashed, 0 where none is known. The host may have written any number.
  std::uint64_t owner() const noexcept;

 private:
  Descriptor memory_;
  const void* mapped_ = nullptr;
};

// In the host: writes to this record at a fatal signal from now on. Throws std::system_error.
void install_crash_handlers(const Descriptor& memory);

// Alternative stack of this thread for the handler, without which an overflow of the thread's own stack leaves no record. Does
// nothing where no handler is installed.
class CrashStack {
 public:
  CrashStack();
  ~CrashStack();
  CrashStack(const CrashStack&) = delete;
  CrashStack& operator=(const CrashStack&) = delete;

 private:
  void* stack_ = nullptr;
};

}  // namespace walle::vm
