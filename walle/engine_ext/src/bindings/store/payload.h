// Encoded payload of a row: bytes, or a bytearray of a PayloadPool.
#pragma once
#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace walle {

// A value of type bytes cannot change, so it is copied where its row is written only: behind the head of its encoding. A Payload
// owns no reference by itself.
struct Payload {
  static constexpr std::size_t kMaxHeadBytes = 5;

  PyObject* object;
  std::array<char, kMaxHeadBytes> head{};
  std::uint8_t head_bytes = 0;

  // Returns the payload that is the encoding of `value`, which is of type bytes and which packed_size has measured.
  static Payload of_bytes(PyObject* value, std::int64_t size);

  std::size_t size() const noexcept;
  // Continues the checksum `before`.
  std::uint32_t crc(std::uint32_t before) const noexcept;
  // Returns a new reference to a statement's parameter, or a null pointer with a Python error.
  PyObject* parameter() const;
};

}  // namespace walle
