// BLAKE2b (RFC 7693) with digests of 8 bytes, of many short messages at a time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace walle {

// A message in two parts, of which the second comes behind the first.
struct MessageParts {
  const unsigned char* first;
  std::size_t first_size;
  const unsigned char* second;
  std::size_t second_size;
};

// out[i] = the digest of messages[i], as a big-endian number.
void blake2b_64(const MessageParts* messages, std::size_t count, std::uint64_t* out) noexcept;

}  // namespace walle
