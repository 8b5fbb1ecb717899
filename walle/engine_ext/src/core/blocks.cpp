#include "core/blocks.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>  // macros are empty without the sanitizer
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes)
#endif

namespace walle {

namespace {

// Large memory uses large pages, where the system offers them: weights are read from end to end in every run, and a first touch
// of 2 MiB at once makes loading quicker.
constexpr std::size_t kLargePage = std::size_t{2} << 20, kLargeBytes = 2 * kLargePage;
// Smaller blocks stay in the allocator's own lists.
constexpr std::size_t kMinCachedBlock = std::size_t{16} << 10;

std::byte* allocate_large(std::size_t bytes) noexcept {
#if defined(__linux__)
  void* data = std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage);
  if (data != nullptr) ::madvise(data, bytes, MADV_HUGEPAGE);  // advice only
  return static_cast<std::byte*>(data);
#else
  return nullptr;
#endif
}

// Smaller memory comes from malloc and a shift: a block freed by aligned_alloc seldom fits the next request of its size.
MemoryBlock allocate_new(std::size_t bytes) noexcept {
  if (bytes >= kLargeBytes)
    if (std::byte* data = allocate_large(bytes)) return {data, data, bytes};
  void* base = std::malloc(bytes + kBlockAlignment);
  if (base == nullptr) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const std::uintptr_t first = (address + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  return {base, static_cast<std::byte*>(base) + (first - address), bytes};
}

// Set when the thread's cache is destroyed, after which other objects of the thread may still free blocks.
thread_local bool is_destroyed = false;

class BlockCache {
 public:
  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache() {
    is_destroyed = true;
    clear();
  }

  std::size_t bytes() const noexcept { return bytes_; }

  std::size_t clear() noexcept {
    const std::size_t freed = bytes_;
    while (count_ > 0) free_oldest();
    return freed;
  }
  // Returns the newest block that is large enough and at most a quarter larger; without data where none is.
  MemoryBlock take(std::size_t bytes) noexcept {
    for (std::size_t i = count_; i-- > 0;)
      if (blocks_[i].size_bytes >= bytes && blocks_[i].size_bytes - bytes <= bytes / 4) {
        ASAN_UNPOISON_MEMORY_REGION(blocks_[i].data, bytes);
        return remove(i);
      }
    return {};
  }
  // Adds the block, in place of the oldest ones where the cache is full.
  void add(const MemoryBlock& block) noexcept {
    while (count_ == kMaxCachedBlocks || (count_ > 0 && bytes_ + block.size_bytes > kMaxCachedBytes)) free_oldest();
    ASAN_POISON_MEMORY_REGION(block.data, block.size_bytes);
    blocks_[count_++] = block;
    bytes_ += block.size_bytes;
  }

 private:
  void free_oldest() noexcept {
    const MemoryBlock block = remove(0);
    ASAN_UNPOISON_MEMORY_REGION(block.data, block.size_bytes);
    std::free(block.base);
  }
  MemoryBlock remove(std::size_t at) noexcept {
    const MemoryBlock block = blocks_[at];
    for (--count_; at < count_; ++at) blocks_[at] = blocks_[at + 1];
    bytes_ -= block.size_bytes;
    return block;
  }

  std::array<MemoryBlock, kMaxCachedBlocks> blocks_;
  std::size_t count_ = 0, bytes_ = 0;
};

BlockCache& cache() noexcept {
  thread_local BlockCache instance;
  return instance;
}

}  // namespace

MemoryBlock allocate_block(std::size_t size_bytes) noexcept {
  if (size_bytes >= kMinCachedBlock && size_bytes <= kMaxCachedBytes && !is_destroyed)
    if (const MemoryBlock cached = cache().take(size_bytes); cached.data != nullptr) return cached;
  return allocate_new(size_bytes);
}

void free_block(const MemoryBlock& block) noexcept {
  if (block.size_bytes >= kMinCachedBlock && block.size_bytes <= kMaxCachedBytes && !is_destroyed)
    cache().add(block);
  else
    std::free(block.base);
}

std::size_t cached_block_bytes() noexcept { return is_destroyed ? 0 : cache().bytes(); }

std::size_t free_cached_blocks() noexcept { return is_destroyed ? 0 : cache().clear(); }

}  // namespace walle
