#include "vm/shared_buffers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "vm/shared_memory.h"

namespace walle::vm {

namespace {

struct SharedBuffer {
  SharedBuffer(std::uint64_t number, SharedMapping mapping)
      : id(number), file(std::move(mapping.file)), data(mapping.data), size_bytes(mapping.size_bytes) {}
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  ~SharedBuffer() { munmap(data, size_bytes); }

  const std::uint64_t id;
  const Descriptor file;
  std::byte* const data;
  const std::size_t size_bytes;
  std::weak_ptr<Storage> user;  // none: the buffer is free
  bool is_retired = false;
};
using BufferPtr = std::shared_ptr<SharedBuffer>;

// Never destroyed: a thread may release an array while the process exits.
struct BufferRegistry {
  std::mutex mutex;
  std::map<const std::byte*, BufferPtr> buffers;  // by address, free ones too
  std::deque<BufferPtr> free;                     // the one that became free last is the last
  std::size_t free_bytes = 0;
  std::uint64_t created = 0;
  std::vector<std::weak_ptr<BufferListener>> listeners;
};

BufferRegistry& buffer_registry() {
  static BufferRegistry& instance = *new BufferRegistry();
  return instance;
}

BufferPtr find_buffer(BufferRegistry& registry, std::uint64_t id) {
  for (const auto& [address, buffer] : registry.buffers)
    if (buffer->id == id) return buffer;
  return nullptr;
}

void tell_end(const std::vector<BufferPtr>& ended) {
  if (ended.empty()) return;
  std::vector<std::shared_ptr<BufferListener>> listeners;
  {
    BufferRegistry& registry = buffer_registry();
    const std::lock_guard lock(registry.mutex);
    std::erase_if(registry.listeners, [](const auto& one) { return one.expired(); });
    for (const auto& one : registry.listeners)
      if (auto listener = one.lock()) listeners.push_back(std::move(listener));
  }
  for (const BufferPtr& buffer : ended)
    for (const auto& listener : listeners) listener->on_buffer_end(buffer->id);
}

// The last array in the buffer is released.
void give_back(const BufferPtr& buffer) {
  std::vector<BufferPtr> ended;  // unmapped after the lock is released
  {
    BufferRegistry& registry = buffer_registry();
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.buffers.find(buffer->data);
    if (found == registry.buffers.end() || found->second != buffer) return;  // the parent's, in a forked child
    if (buffer->is_retired) {
      registry.buffers.erase(found);
      ended.push_back(buffer);
    } else {
      registry.free.push_back(buffer);
      registry.free_bytes += buffer->size_bytes;
      while (registry.free_bytes > kMaxFreeBufferBytes) {
        ended.push_back(registry.free.front());
        registry.free_bytes -= ended.back()->size_bytes;
        registry.buffers.erase(ended.back()->data);
        registry.free.pop_front();
      }
    }
  }
  tell_end(ended);
}

// With the lock held. Returns null where there is none of this size, and the system has none or enough are in use.
BufferPtr take_buffer(BufferRegistry& registry, std::size_t size_bytes, std::vector<BufferPtr>& ended) {
  const auto found = std::find_if(registry.free.rbegin(), registry.free.rend(),
                                  [&](const BufferPtr& one) { return one->size_bytes == size_bytes; });
  if (found != registry.free.rend()) {
    BufferPtr buffer = *found;
    registry.free.erase(std::next(found).base());
    registry.free_bytes -= size_bytes;
    return buffer;
  }
  if (registry.buffers.size() >= kMaxBuffers) {
    if (registry.free.empty()) return nullptr;
    ended.push_back(registry.free.front());
    registry.free_bytes -= ended.back()->size_bytes;
    registry.buffers.erase(ended.back()->data);
    registry.free.pop_front();
  }
  SharedMapping mapping = create_shared_mapping(size_bytes);
  if (mapping.data == nullptr) return nullptr;
  auto buffer = std::make_shared<SharedBuffer>(++registry.created, std::move(mapping));
  registry.buffers[buffer->data] = buffer;
  return buffer;
}

}  // namespace

std::shared_ptr<Storage> allocate_shared(std::size_t size_bytes) {
  if (size_bytes < kSharedBufferBytes) return Storage::allocate(size_bytes);
  const std::size_t rounded = (size_bytes + kSharedBufferBytes - 1) / kSharedBufferBytes * kSharedBufferBytes;
  std::shared_ptr<Storage> storage;
  std::vector<BufferPtr> ended;
  {
    BufferRegistry& registry = buffer_registry();
    const std::lock_guard lock(registry.mutex);
    if (const BufferPtr buffer = take_buffer(registry, rounded, ended)) {
      storage = Storage::borrow(buffer->data, size_bytes, true, [buffer] { give_back(buffer); });
      buffer->user = storage;
    }
  }
  tell_end(ended);
  return storage != nullptr ? storage : Storage::allocate(size_bytes);
}

std::optional<SharedRange> find_shared(const std::byte* address, std::size_t size_bytes) {
  BufferRegistry& registry = buffer_registry();
  const std::lock_guard lock(registry.mutex);
  auto found = registry.buffers.upper_bound(address);
  if (found == registry.buffers.begin()) return std::nullopt;
  const BufferPtr& buffer = (--found)->second;
  const auto offset = static_cast<std::size_t>(address - buffer->data);
  if (offset > buffer->size_bytes || size_bytes > buffer->size_bytes - offset) return std::nullopt;
  auto memory = buffer->user.lock();
  if (memory == nullptr) return std::nullopt;
  return SharedRange{buffer->id, buffer->size_bytes, offset, std::move(memory)};
}

Descriptor duplicate_shared(std::uint64_t id) {
  BufferRegistry& registry = buffer_registry();
  const std::lock_guard lock(registry.mutex);
  const BufferPtr buffer = find_buffer(registry, id);
  return buffer == nullptr ? Descriptor() : Descriptor(fcntl(buffer->file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

void retire_shared(std::uint64_t id) {
  BufferRegistry& registry = buffer_registry();
  const std::lock_guard lock(registry.mutex);
  const BufferPtr buffer = find_buffer(registry, id);
  if (buffer != nullptr && !buffer->user.expired()) buffer->is_retired = true;
}

void add_buffer_listener(const std::shared_ptr<BufferListener>& listener) {
  BufferRegistry& registry = buffer_registry();
  const std::lock_guard lock(registry.mutex);
  registry.listeners.push_back(listener);
}

SharedBufferCounts shared_buffer_counts() {
  BufferRegistry& registry = buffer_registry();
  const std::lock_guard lock(registry.mutex);
  SharedBufferCounts counts;
  counts.free = registry.free.size();
  counts.in_use = registry.buffers.size() - counts.free;
  for (const auto& [address, buffer] : registry.buffers) counts.bytes += buffer->size_bytes;
  counts.created = registry.created;
  return counts;
}

void lock_shared_buffers_for_fork() { buffer_registry().mutex.lock(); }

void unlock_shared_buffers_after_fork(bool is_child) {
  BufferRegistry& registry = buffer_registry();
  if (is_child) {  // arrays in use stay readable; the parent may write to them
    registry.free.clear();
    registry.free_bytes = 0;
    registry.buffers.clear();
    registry.listeners.clear();
  }
  registry.mutex.unlock();
}

std::shared_ptr<Storage> map_shared_buffer(const Descriptor& memory, std::size_t size_bytes) {
  struct stat status{};
  if (size_bytes == 0 || fstat(memory.get(), &status) != 0) return nullptr;
  if (static_cast<std::size_t>(status.st_size) != size_bytes) return nullptr;
  void* address = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED) return nullptr;
  return Storage::borrow(address, size_bytes, false, [address, size_bytes] { munmap(address, size_bytes); });
}

}  // namespace walle::vm
