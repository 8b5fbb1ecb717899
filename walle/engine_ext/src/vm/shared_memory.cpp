#include "vm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

namespace walle::vm {

namespace {

#ifdef __linux__
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kSeals = kSizeSeals | F_SEAL_WRITE;
constexpr unsigned kNoExecute = 8;  // MFD_NOEXEC_SEAL, since Linux 6.3
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif
constexpr int kReaderSeals = kSizeSeals | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// Empty where the system gives none; errno says why.
Descriptor create_memory(const char* name = "walle-array") {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecute);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return Descriptor(fd);
}
#endif

// Addresses of mapped files. Never destroyed, because threads may reach it while the process exits.
struct MappedFiles {
  std::mutex mutex;
  std::set<const void*> addresses;
};

MappedFiles& mapped_files() {
  static MappedFiles& instance = *new MappedFiles();
  return instance;
}

}  // namespace

#ifdef __linux__

Descriptor create_shared_bytes(const char* name, std::size_t size_bytes) {
  Descriptor memory = create_memory(name);
  if (!memory || ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    throw std::system_error(errno, std::generic_category(), "shared memory");
  return memory;
}

Descriptor share_bytes(const std::byte* data, std::size_t size_bytes) {
  Descriptor memory = create_memory();
  if (!memory) throw std::system_error(errno, std::generic_category(), "memfd_create");
  for (std::size_t done = 0; done < size_bytes;) {
    const ssize_t written = write(memory.get(), data + done, size_bytes - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::system_error(errno, std::generic_category(), "write to shared memory");
    done += static_cast<std::size_t>(written);
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) throw std::system_error(errno, std::generic_category(), "F_ADD_SEALS");
  return memory;
}

std::shared_ptr<Storage> map_shared_bytes(const Descriptor& memory, std::size_t size_bytes) {
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  struct stat status{};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memory.get(), &status) != 0) return nullptr;
  if (static_cast<std::size_t>(status.st_size) != size_bytes || size_bytes == 0) return nullptr;
  void* address = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory.get(), 0);
  if (address == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of an array");
  return Storage::borrow(address, size_bytes, true, [address, size_bytes] { munmap(address, size_bytes); });
}

SharedMapping create_shared_mapping(std::size_t size_bytes) noexcept {
  Descriptor memory = create_memory();
  if (!memory || ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0) return {};
  void* address = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED) return {};
  if (fcntl(memory.get(), F_ADD_SEALS, kReaderSeals) != 0) {
    munmap(address, size_bytes);
    return {};
  }
  return {std::move(memory), static_cast<std::byte*>(address), size_bytes};
}

#else  // no memory there can be sealed: arrays cross as bytes

Descriptor create_shared_bytes(const char*, std::size_t) {
  throw std::system_error(ENOSYS, std::generic_category(), "memfd_create");
}

Descriptor share_bytes(const std::byte*, std::size_t) {
  throw std::system_error(ENOSYS, std::generic_category(), "memfd_create");
}

std::shared_ptr<Storage> map_shared_bytes(const Descriptor&, std::size_t) { return nullptr; }

SharedMapping create_shared_mapping(std::size_t) noexcept { return {}; }

#endif

std::shared_ptr<Storage> map_file_bytes(const Descriptor& file) {
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  if (status.st_size == 0) return Storage::allocate(0);
  const auto size_bytes = static_cast<std::size_t>(status.st_size);
  void* address = mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return nullptr;
  {
    const std::lock_guard lock(mapped_files().mutex);
    mapped_files().addresses.insert(address);
  }
  return Storage::borrow(address, size_bytes, false, [address, size_bytes] {
    {
      const std::lock_guard lock(mapped_files().mutex);
      mapped_files().addresses.erase(address);
    }
    munmap(address, size_bytes);
  });
}

bool is_mapped_file(const Storage* storage) {
  const std::lock_guard lock(mapped_files().mutex);
  return mapped_files().addresses.contains(storage->data());
}

}  // namespace walle::vm
