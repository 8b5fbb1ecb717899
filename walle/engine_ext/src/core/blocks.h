// Memory of storages: aligned blocks, of which each thread caches a few freed ones for later requests of their size. The system's
// allocator returns large blocks to the system at once, and equal temporaries would touch new pages again and again.
#pragma once
#include <cstddef>

namespace walle {

struct MemoryBlock {
  void* base = nullptr;        // the allocation
  std::byte* data = nullptr;   // aligned; null where the allocation failed
  std::size_t size_bytes = 0;  // bytes from `data` on
};

inline constexpr std::size_t kBlockAlignment = 64;
// Limits of a thread's cache; all of it is freed when the thread ends.
inline constexpr std::size_t kMaxCachedBytes = std::size_t{16} << 20, kMaxCachedBlocks = 8;

MemoryBlock allocate_block(std::size_t size_bytes) noexcept;
void free_block(const MemoryBlock& block) noexcept;  // callable on any thread, which may cache the block
// Frees this thread's cache, as where its work is done for now. Returns the bytes freed.
std::size_t free_cached_blocks() noexcept;
std::size_t cached_block_bytes() noexcept;  // counted for this thread

}  // namespace walle
