#include "bindings/store/packed_value.h"

#include <climits>

#include "bindings/stream/packed_size.h"
#include "bindings/stream/plain_walk.h"

namespace walle {

int pack_value(PyObject* value, char* to, std::int64_t size) {
  PlainMemory memory(to);
  if (PlainWalk(memory).write(value, INT_MAX) && memory.end() - reinterpret_cast<std::uint8_t*>(to) == size) return 0;
  PyErr_SetString(PyExc_SystemError, "the size of a value's encoding is not the computed one");
  return -1;
}

void pack_bytes_head(std::uint64_t size, char* to) { PlainMemory(to).binary_head(static_cast<std::uint32_t>(size)); }

PyObject* packed_value(PyObject* value) {
  const std::int64_t size = packed_size(value);
  if (size < 0) return nullptr;
  if (const Encoded* encoded = as_encoded(value); encoded != nullptr) return Py_NewRef(encoded->bytes);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (bytes != nullptr && pack_value(value, PyBytes_AS_STRING(bytes), size) < 0) Py_CLEAR(bytes);
  return bytes;
}

}  // namespace walle
