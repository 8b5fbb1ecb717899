// A thread's cache of freed blocks: reuse for requests of nearly the same size, the cache's limits, and the thread's end.
#include <thread>
#include <vector>

#include "check.h"
#include "core/blocks.h"

using namespace walle;

namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;

void on_a_thread(void (*body)()) { std::thread(body).join(); }

void blocks_are_reused() {
  const MemoryBlock first = allocate_block(kMega);
  CHECK(reinterpret_cast<std::uintptr_t>(first.data) % kBlockAlignment == 0 && first.size_bytes >= kMega);
  free_block(first);
  const MemoryBlock smaller = allocate_block(kMega - kMega / 8);
  CHECK(smaller.data == first.data && smaller.size_bytes == first.size_bytes);
  free_block(smaller);
  const MemoryBlock much_smaller = allocate_block(kMega / 2), larger = allocate_block(kMega + 1);
  CHECK(much_smaller.data != first.data && larger.data != first.data);
  free_block(much_smaller);
  free_block(larger);
}

// The oldest blocks are freed first, and blocks larger than the limit are not cached.
void the_cache_keeps(std::size_t size_bytes, std::size_t kept) {
  std::vector<MemoryBlock> taken;
  for (std::size_t i = 0; i < 2 * kept; ++i) taken.push_back(allocate_block(size_bytes));
  for (const MemoryBlock& block : taken) free_block(block);
  CHECK(cached_block_bytes() >= kept * size_bytes && cached_block_bytes() <= kMaxCachedBytes);
  for (std::size_t i = 0; i < kept; ++i) {
    const MemoryBlock reused = allocate_block(size_bytes);
    CHECK(reused.data == taken[taken.size() - 1 - i].data);
    taken[i] = reused;  // a block that is no longer cached
  }
  for (std::size_t i = 0; i < kept; ++i) free_block(taken[i]);
  const MemoryBlock large = allocate_block(kMaxCachedBytes + kMega);
  free_block(large);
  const MemoryBlock newest = allocate_block(size_bytes);
  CHECK(newest.data == taken[kept - 1].data);
  free_block(newest);
}

void the_cache_is_bounded_by_bytes() { the_cache_keeps(kMaxCachedBytes / 4, 4); }
void the_cache_is_bounded_by_blocks() { the_cache_keeps(kMega, kMaxCachedBlocks); }

void the_cache_can_be_freed() {
  free_block(allocate_block(kMega));
  free_block(allocate_block(kMega / 2));
  CHECK(free_cached_blocks() == kMega + kMega / 2);
  CHECK(free_cached_blocks() == 0);
  free_block(allocate_block(kMega));
  CHECK(free_cached_blocks() == kMega);
}

// A thread's last objects free their blocks after its cache is destroyed.
struct Late {
  MemoryBlock block;
  ~Late() { free_block(block); }
};
void the_end_of_a_thread() {
  thread_local Late late;             // created first, so destroyed last
  free_block(allocate_block(kMega));  // creates the cache
  late.block = allocate_block(kMega);
  free_block(allocate_block(kMega));
}

}  // namespace

int main() {
  on_a_thread(&blocks_are_reused);
  on_a_thread(&the_cache_is_bounded_by_bytes);
  on_a_thread(&the_cache_is_bounded_by_blocks);
  on_a_thread(&the_cache_can_be_freed);
  on_a_thread(&the_end_of_a_thread);
  on_a_thread([] {
    const MemoryBlock block = allocate_block(kMega);
    std::thread([block] { free_block(block); }).join();  // freed by another thread
    free_block(allocate_block(kMega));
  });
  return check::failures != 0;
}
