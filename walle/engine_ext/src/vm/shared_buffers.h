// Arrays in memory that a device and its VM hosts share (ADR 20): a host maps a buffer once, and each array in it crosses as a
// number and an offset. A buffer is used again once all arrays in it are released in the device, the arguments of calls that
// have not ended included. A task that keeps an array keeps its buffer: the host says so, and the buffer is not used again.
//
// The device writes, a host can only read (F_SEAL_FUTURE_WRITE, since Linux 5.1). Where the system has no such memory, or too
// many buffers are in use, arrays are in ordinary memory, and cross as any other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/tensor.h"
#include "vm/descriptor.h"

namespace walle::vm {

// Smaller arrays cross faster through the socket.
inline constexpr std::size_t kSharedBufferBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxFreeBufferBytes = std::size_t{32} << 20;  // memory of buffers that wait for their next use
inline constexpr std::size_t kMaxBuffers = 128;                            // each has a descriptor

// Returns uninitialised memory of a buffer, or ordinary memory. Throws std::bad_alloc.
std::shared_ptr<Storage> allocate_shared(std::size_t size_bytes);

// A part of a buffer that is in use.
struct SharedRange {
  std::uint64_t id = 0;             // number of the buffer; never used again
  std::size_t buffer_bytes = 0;     // size of the buffer
  std::size_t offset = 0;           // begin of the part
  std::shared_ptr<Storage> memory;  // keeps the buffer in use
};
// Returns the part of a buffer at this address, nothing where the memory is of no buffer.
std::optional<SharedRange> find_shared(const std::byte* address, std::size_t size_bytes);
// Returns the buffer's file, for a host to map; none where the system has no descriptor left.
Descriptor duplicate_shared(std::uint64_t id);
// The buffer is not used again: a task keeps an array in it.
void retire_shared(std::uint64_t id);

// Is told of buffers that end, so that its host unmaps them. On any thread.
class BufferListener {
 public:
  virtual ~BufferListener() = default;
  virtual void on_buffer_end(std::uint64_t id) = 0;
};
void add_buffer_listener(const std::shared_ptr<BufferListener>& listener);

struct SharedBufferCounts {
  std::size_t in_use = 0, free = 0, bytes = 0;
  std::uint64_t created = 0;
};
SharedBufferCounts shared_buffer_counts();

// Around a fork, on the thread that forks. The child has no part in its parent's buffers.
void lock_shared_buffers_for_fork();
void unlock_shared_buffers_after_fork(bool is_child);

// --- The host's side

// Maps a buffer read-only; what the device writes is seen. Null where the system cannot.
std::shared_ptr<Storage> map_shared_buffer(const Descriptor& memory, std::size_t size_bytes);

}  // namespace walle::vm
