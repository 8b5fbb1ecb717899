#include "vm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

namespace walle::vm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr unsigned kNoExecute = 8;  // MFD_NOEXEC_SEAL, since Linux 6.3

std::shared_ptr<Storage> map_bytes(int fd, std::size_t size_bytes, bool is_writable) {
  void* address = mmap(nullptr, size_bytes, is_writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) return nullptr;
  return Storage::borrow(address, size_bytes, is_writable, [address, size_bytes] { munmap(address, size_bytes); });
}

}  // namespace

Descriptor create_shared_memory(const char* name) {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecute);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  return Descriptor(fd);
}

Descriptor share_bytes(const std::byte* data, std::size_t size_bytes) {
  Descriptor memory = create_shared_memory("walle-array");
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
  return map_bytes(memory.get(), size_bytes, true);
}

std::shared_ptr<Storage> map_file_bytes(const Descriptor& file) {
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  if (status.st_size == 0) return Storage::allocate(0);
  return map_bytes(file.get(), static_cast<std::size_t>(status.st_size), false);
}

}  // namespace walle::vm
