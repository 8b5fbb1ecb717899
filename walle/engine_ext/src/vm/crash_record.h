// Crash record of a VM host: the phase and the last known place of each VM's task, in memory that outlives the host's process,
// and the frames of a thread that crashed, in a socket. The device reads both once the host has ended, by whatever cause. Tasks
// that broke out of Python can write both too: what they say is shown to people, and no decision depends on it. The host has no
// descriptor from which a task could read them: the memory's is closed once it is mapped, and a socket cannot be opened again by
// the path of its descriptor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "vm/descriptor.h"

namespace walle::vm {

// What a VM's task was doing. Both texts come from the host, and may be any bytes.
struct TaskPlace {
  std::string phase;  // phase of the task, or the function that was called
  std::string place;  // "file:line in function" of the task's code; "" where none is known
};

// One VM's entry in the record. Written by the VM's thread alone.
struct PlaceEntry {
  std::uint64_t vm_id;
  std::uint64_t thread;  // thread of the VM, in faulthandler's notation
  char phase[32];        // both end with a zero
  char place[464];

  void enter_phase(std::string_view name) noexcept;
  void set_place(std::string_view text) noexcept;
};
static_assert(sizeof(PlaceEntry) == 512);

// Memory of the entries, whose size cannot change, and an end of the socket for frames. The host has its own descriptors of both.
struct CrashRecordPort {
  Descriptor memory;
  Descriptor frames;

  explicit operator bool() const noexcept { return memory && frames; }
};

// --- On the device

// Returns the device's port and the host's. None of either where the system has no such memory, or too little: then no place is
// known.
std::pair<CrashRecordPort, CrashRecordPort> create_crash_record() noexcept;
// Returns the frames that the host has written. May be any bytes. They are removed from the socket.
std::string receive_frames(const CrashRecordPort& record);
// Returns what the VM was doing: the innermost frame of its own `files` where its thread crashed, else what it entered last.
TaskPlace read_place(const CrashRecordPort& record, std::string_view frames, std::uint64_t vm_id,
                     const std::unordered_set<std::string>& files);

// --- In the host

class CrashRecord {
 public:
  explicit CrashRecord(CrashRecordPort port);
  CrashRecord(const CrashRecord&) = delete;
  CrashRecord& operator=(const CrashRecord&) = delete;
  ~CrashRecord();

  // Returns a free entry for the VM, or null.
  PlaceEntry* take(std::uint64_t vm_id) noexcept;
  // Frees the entry of a VM that has ended.
  void release(std::uint64_t vm_id) noexcept;
  // The descriptor to which faulthandler writes a crashed thread's frames, or -1.
  int trace_fd() const noexcept { return frames_.get(); }

 private:
  const Descriptor frames_;
  PlaceEntry* entries_ = nullptr;
};

// Gives the calling thread a stack for handlers of signals, so that one runs where the thread's own stack is used up. It is
// removed when the thread ends.
void use_signal_stack() noexcept;

}  // namespace walle::vm
