// Queue of the host: runs steps by a team of threads, on addresses of the host.
#pragma once
#include "core/device.h"

namespace walle {

inline std::byte* host_address(BufferHandle handle) noexcept {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(handle));
}

// Throws std::system_error where a thread cannot be created.
std::unique_ptr<Queue> make_host_queue(int threads);

}  // namespace walle
