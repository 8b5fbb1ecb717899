// CRC-32 (polynomial 0xEDB88320, as zlib computes it) of models' files and of rows of a feature store.
#pragma once
#include <cstddef>
#include <cstdint>

namespace walle {

// `crc` continues an earlier one.
std::uint32_t crc32(const std::byte* data, std::size_t size, std::uint32_t crc = 0) noexcept;

}  // namespace walle
