// Shared buffers: use and release on many threads at once, their bounds, and what a released buffer is used for.
#include "vm/shared_buffers.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

using namespace walle;
using namespace walle::vm;

namespace {

struct Ends final : BufferListener {
  void on_buffer_end(std::uint64_t) override { ++count; }
  std::atomic<int> count{0};
};

void a_buffer_is_used_again_unless_it_is_retired() {
  const auto before = shared_buffer_counts().created;
  auto first = allocate_shared(kSharedBufferBytes);
  auto range = find_shared(first->data() + 10, 100);
  CHECK(range && range->offset == 10);
  CHECK(!find_shared(first->data() + 10, kSharedBufferBytes));
  const std::uint64_t id = range->id;
  first.reset();  // the range keeps it
  auto second = allocate_shared(kSharedBufferBytes);
  CHECK(find_shared(second->data(), 1)->id != id);
  range.reset();
  auto third = allocate_shared(kSharedBufferBytes);
  CHECK(find_shared(third->data(), 1)->id == id);
  CHECK(shared_buffer_counts().created == before + 2);
}

void listeners_get_each_end() {
  auto ends = std::make_shared<Ends>();
  add_buffer_listener(ends);
  auto storage = allocate_shared(kSharedBufferBytes);
  const auto id = find_shared(storage->data(), 1)->id;
  retire_shared(id);
  storage.reset();
  CHECK(ends->count == 1);
  auto next = allocate_shared(kSharedBufferBytes);
  CHECK(find_shared(next->data(), 1)->id != id);
}

void many_threads_share_them() {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&wrong, number] {
      for (int round = 0; round < 300; ++round) {
        std::vector<std::shared_ptr<Storage>> held;
        for (int one = 0; one < 5; ++one) {
          auto storage = allocate_shared(kSharedBufferBytes * static_cast<std::size_t>(1 + (round + one) % 3));
          std::memset(storage->data(), number, storage->size_bytes());
          if (const auto range = find_shared(storage->data(), storage->size_bytes()); range && round % 50 == 0)
            retire_shared(range->id);
          held.push_back(std::move(storage));
        }
        for (const auto& storage : held)
          for (std::size_t at = 0; at < storage->size_bytes(); at += 4096)
            if (static_cast<int>(storage->data()[at]) != number) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(shared_buffer_counts().in_use == 0);
}

void a_reader_sees_what_is_written_and_cannot_write() {
  auto storage = allocate_shared(kSharedBufferBytes);
  const auto range = find_shared(storage->data(), 1);
  const Descriptor file = duplicate_shared(range->id);
  CHECK(bool(file));
  const auto mapped = map_shared_buffer(file, range->buffer_bytes);
  CHECK(mapped != nullptr);
  storage->data()[5] = std::byte{7};
  CHECK(mapped->data()[5] == std::byte{7});
  CHECK(map_shared_buffer(file, range->buffer_bytes - 1) == nullptr);
  CHECK(write(file.get(), "x", 1) < 0);
}

void bounds_hold() {
  std::vector<std::shared_ptr<Storage>> held;
  for (int one = 0; one < 400; ++one) held.push_back(allocate_shared(kSharedBufferBytes));
  CHECK(shared_buffer_counts().in_use <= kMaxBuffers);
  held.clear();
  for (int one = 0; one < 50; ++one) held.push_back(allocate_shared(kMaxFreeBufferBytes / 4 + kSharedBufferBytes * one));
  held.clear();
  CHECK(shared_buffer_counts().bytes <= kMaxFreeBufferBytes);
}

}  // namespace

int main() {
  a_buffer_is_used_again_unless_it_is_retired();
  listeners_get_each_end();
  many_threads_share_them();
  a_reader_sees_what_is_written_and_cannot_write();
  bounds_hold();
  return check::failures == 0 ? 0 : 1;
}
