// Memory of storages: aligned blocks, of which each thread keeps a few that were given back for the next requests of their size.
// The system's allocator gives large blocks back to the system at once, and equal temporaries would touch new pages again and
// again.
#pragma once
#include <cstddef>

namespace walle {

struct Block {
  void* base = nullptr;        // what is to be freed
  std::byte* data = nullptr;   // aligned; null where there is no memory
  std::size_t size_bytes = 0;  // from data on
};

inline constexpr std::size_t kBlockAlignment = 64;
// What a thread keeps at most; all of it is freed when the thread ends.
inline constexpr std::size_t kMostSpareBytes = std::size_t{4} << 20, kMostSpareBlocks = 8;

Block take_block(std::size_t size_bytes) noexcept;
void give_back(const Block& block) noexcept;  // by any thread, which may keep it
// Frees what this thread keeps, as where its work is done for now; how many bytes that were.
std::size_t free_spare_blocks() noexcept;

}  // namespace walle
