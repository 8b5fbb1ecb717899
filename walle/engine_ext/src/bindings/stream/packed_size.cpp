#include "bindings/stream/packed_size.h"

#include "bindings/stream/encoded.h"

namespace walle {

namespace {

constexpr int kMaxPackedDepth = 90;  // as walle.pipeline.events.MAX_CONTENTS_DEPTH: an event with more levels is refused

// Bytes of a head that holds a length: `tiny` is the largest length of a one-byte head, `has_8` says if there is one with 8 bits.
std::int64_t head_size(Py_ssize_t length, Py_ssize_t tiny, bool has_8) {
  if (length <= tiny) return 1;
  if (has_8 && length <= 0xFF) return 2;
  if (length <= 0xFFFF) return 3;
  return length <= 0xFFFFFFFF ? 5 : -1;
}

std::int64_t int_size(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return -1;  // it may still be an unsigned one
  if (number >= -32 && number <= 127) return 1;
  if (number >= -128 && number <= 255) return 2;
  if (number >= -32768 && number <= 65535) return 3;
  return number >= -2147483648LL && number <= 4294967295LL ? 5 : 9;
}

std::int64_t text_size(PyObject* value) {
  Py_ssize_t length = PyUnicode_GET_LENGTH(value);
  if (!PyUnicode_IS_ASCII(value)) {
    Py_ssize_t bytes = 0;
    for (Py_ssize_t i = 0; i < length; ++i) {
      const Py_UCS4 character = PyUnicode_READ_CHAR(value, i);
      if (Py_UNICODE_IS_SURROGATE(character)) return -1;
      bytes += character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    }
    length = bytes;
  }
  const std::int64_t head = head_size(length, 31, true);
  return head < 0 ? -1 : head + length;
}

}  // namespace

std::int64_t packed_size(PyObject* value, int depth) {
  if (PyUnicode_CheckExact(value)) return text_size(value);
  if (PyLong_CheckExact(value)) return int_size(value);
  if (value == Py_None || PyBool_Check(value)) return 1;
  if (PyFloat_CheckExact(value)) return 9;
  if (PyBytes_CheckExact(value)) {
    const std::int64_t head = head_size(PyBytes_GET_SIZE(value), -1, true);
    return head < 0 ? -1 : head + PyBytes_GET_SIZE(value);
  }
  if (depth >= kMaxPackedDepth) return -1;
  if (const Encoded* encoded = as_encoded(value); encoded != nullptr)
    return depth + encoded->depth > kMaxPackedDepth ? -1 : PyBytes_GET_SIZE(encoded->bytes);
  if (PyDict_CheckExact(value)) {
    std::int64_t size = head_size(PyDict_GET_SIZE(value), 15, false);
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *item = nullptr;
    while (size >= 0 && PyDict_Next(value, &at, &key, &item)) {
      const std::int64_t key_size = packed_size(key, depth + 1), item_size = key_size < 0 ? -1 : packed_size(item, depth + 1);
      size = item_size < 0 ? -1 : size + key_size + item_size;
    }
    return size;
  }
  const bool is_list = PyList_CheckExact(value);
  if (!is_list && !PyTuple_CheckExact(value)) return -1;
  const Py_ssize_t length = is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value);
  std::int64_t size = head_size(length, 15, false);
  for (Py_ssize_t i = 0; i < length && size >= 0; ++i) {
    const std::int64_t item_size = packed_size(is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i), depth + 1);
    size = item_size < 0 ? -1 : size + item_size;
  }
  return size;
}

}  // namespace walle
