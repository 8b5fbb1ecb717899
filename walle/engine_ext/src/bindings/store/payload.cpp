#include "bindings/store/payload.h"

#include <cstring>

#include "bindings/store/packed_value.h"
#include "core/crc32.h"

namespace walle {

namespace {

// Python's sqlite3 looks for an adapter for each parameter of type bytes, and for none of type bytearray: 0.3 us against a copy.
constexpr std::size_t kMaxCopiedBytes = 8192;

}  // namespace

Payload Payload::of_bytes(PyObject* value, std::int64_t size) {
  Payload payload{value};
  payload.head_bytes = static_cast<std::uint8_t>(size - PyBytes_GET_SIZE(value));
  pack_bytes_head(static_cast<std::uint64_t>(PyBytes_GET_SIZE(value)), payload.head.data());
  return payload;
}

std::size_t Payload::size() const noexcept { return head_bytes + static_cast<std::size_t>(Py_SIZE(object)); }

std::uint32_t Payload::crc(std::uint32_t before) const noexcept {
  if (PyByteArray_CheckExact(object))
    return crc32(reinterpret_cast<const std::byte*>(PyByteArray_AS_STRING(object)), size(), before);
  const std::uint32_t after_head = crc32(reinterpret_cast<const std::byte*>(head.data()), head_bytes, before);
  return crc32(reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(object)), static_cast<std::size_t>(PyBytes_GET_SIZE(object)),
               after_head);
}

PyObject* Payload::parameter() const {
  if (PyByteArray_CheckExact(object) || (head_bytes == 0 && size() > kMaxCopiedBytes)) return Py_NewRef(object);
  PyObject* copy = PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size()));
  if (copy == nullptr) return nullptr;
  char* to = PyByteArray_AS_STRING(copy);
  std::memcpy(to, head.data(), head_bytes);
  std::memcpy(to + head_bytes, PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object)));
  return copy;
}

}  // namespace walle
