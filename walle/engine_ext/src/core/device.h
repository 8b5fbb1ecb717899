// Device: memory, the copies between it and the host, queues that run steps there, and the kernels that make steps. Planner and
// session reach the memory and the kernels of a plan through this interface alone. A device is not an instruction set: the CPU
// is one device, whose instruction sets are kernel sets (host/host_device.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/step.h"

namespace walle {

class KernelSet;  // plan/kernel_set.h

// Handle of a buffer, which its device alone can resolve. A device that uses the host's memory in place has its addresses.
enum class BufferHandle : std::uintptr_t {};
inline BufferHandle host_handle(const std::byte* data) noexcept { return BufferHandle{reinterpret_cast<std::uintptr_t>(data)}; }

// Memory of a device, freed with the last copy.
struct Buffer {
  std::shared_ptr<const void> owner;
  BufferHandle handle{};
  std::size_t size_bytes = 0;
};

// Place of an operand: a buffer of the run, by its number, and an offset in bytes. Buffer -1: an operand that is left out.
struct Place {
  int buffer = -1;
  std::int64_t offset = 0;
};

// A step and its operands.
struct Command {
  std::shared_ptr<const Step> step;
  std::vector<Place> inputs;
  Place output;
};

// Commands in the order of running. It does not change once made: a queue may keep what it derives from it.
struct CommandList {
  std::vector<Command> commands;
  Place scratch;  // shared by all steps
  std::size_t max_inputs = 0;
};

// A value that a step refused: the command's index, and a text that lives as long as the program.
struct CommandFault {
  std::size_t command;
  const char* what;
};

// Queue of a device: runs one list of commands at a time.
class Queue {
 public:
  virtual ~Queue() = default;
  // Runs the commands and returns when all have ended, or at the first that refuses a value or once the current stop is
  // requested (core/stop.h); results are not whole then. `buffers` has the handles of the run's buffers by number. Throws
  // std::bad_alloc before the first command. `us`, where it is not null, receives the microseconds of each command.
  virtual std::optional<CommandFault> run(const CommandList& list, std::span<const BufferHandle> buffers, double* us) = 0;
};

// Thread-safe. Lives as long as the program.
class Device {
 public:
  virtual ~Device() = default;
  // Alignment of values within a buffer, in bytes.
  virtual std::size_t alignment() const noexcept = 0;
  // Throws OutOfMemory.
  virtual Buffer allocate(std::size_t size_bytes) const = 0;
  // Whether steps use memory of the host in place, by host_handle(); otherwise its contents are copied.
  bool uses_host_memory() const noexcept { return uses_host_memory_; }
  // Copy from the host, to the host, and within the device; each returns when the bytes are there.
  virtual void write(const Buffer& to, std::size_t offset, std::span<const std::byte> from) const = 0;
  virtual void read(const Buffer& from, std::size_t offset, std::span<std::byte> to) const = 0;
  virtual void copy(const Buffer& from, std::size_t from_offset, const Buffer& to, std::size_t to_offset,
                    std::size_t size_bytes) const = 0;
  // Throws std::system_error where a thread cannot be created.
  virtual std::unique_ptr<Queue> make_queue(int threads) const = 0;
  // Return the kernel sets that search chooses between, in ascending order of preference. They make the steps.
  virtual std::span<const KernelSet* const> kernel_sets() const = 0;

 protected:
  explicit Device(bool uses_host_memory) noexcept : uses_host_memory_(uses_host_memory) {}

 private:
  const bool uses_host_memory_;
};

}  // namespace walle
