// Shared memory for arrays that cross to another process: anonymous files (memfd), sealed so that neither size nor contents can
// change once the receiver has them.
#pragma once
#include <cstddef>
#include <memory>

#include "core/tensor.h"
#include "vm/descriptor.h"

namespace walle::vm {

// Returns a file of zeros that can be written, and whose size is sealed. Throws std::system_error.
Descriptor create_shared_bytes(const char* name, std::size_t size_bytes);

// Returns a sealed file with these bytes. Throws std::system_error.
Descriptor share_bytes(const std::byte* data, std::size_t size_bytes);

// Maps `size_bytes`, more than 0, of a sealed file privately: the receiver may write, which the sender does not see. Returns null
// where the file has another size or is not sealed. Throws std::system_error where the system cannot map it.
std::shared_ptr<Storage> map_shared_bytes(const Descriptor& memory, std::size_t size_bytes);

// Memory that its creator writes and others can only read: `file` may be mapped by them, whose mappings are read-only.
struct SharedMapping {
  Descriptor file = Descriptor();
  std::byte* data = nullptr;  // the owner unmaps it; null where the system has no such memory
  std::size_t size_bytes = 0;
};
SharedMapping create_shared_mapping(std::size_t size_bytes) noexcept;

// Maps an ordinary file, read-only. Returns null where the system cannot map it; a storage without bytes for an empty file.
std::shared_ptr<Storage> map_file_bytes(const Descriptor& file);

// Whether the storage is a live one of map_file_bytes: it outlives every interpreter, and nobody writes to it.
bool is_mapped_file(const Storage* storage);

}  // namespace walle::vm
