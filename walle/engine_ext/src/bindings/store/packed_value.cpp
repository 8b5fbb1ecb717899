#include "bindings/store/packed_value.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "bindings/stream/encoded.h"
#include "bindings/stream/packed_size.h"

namespace walle {

namespace {

// Writes into memory that packed_size has measured. It runs no Python code, so that no value changes in between.
class Packer {
 public:
  explicit Packer(char* to) : to_(to) {}

  void pack(PyObject* value) {
    if (PyUnicode_CheckExact(value)) return pack_text(value);
    if (PyLong_CheckExact(value)) return pack_int(PyLong_AsLongLong(value));
    if (value == Py_None) return byte(0xC0);
    if (PyBool_Check(value)) return byte(value == Py_True ? 0xC3 : 0xC2);
    if (PyFloat_CheckExact(value)) return head(0xCB, std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(value)), 8);
    if (PyBytes_CheckExact(value)) {
      const auto size = static_cast<std::uint64_t>(PyBytes_GET_SIZE(value));
      bytes_head(size);
      return raw(PyBytes_AS_STRING(value), size);
    }
    if (PyDict_CheckExact(value)) {
      length(static_cast<std::uint64_t>(PyDict_GET_SIZE(value)), 16, 0x80, 0xDD, false);
      Py_ssize_t at = 0;
      PyObject *key = nullptr, *item = nullptr;
      while (PyDict_Next(value, &at, &key, &item)) {
        pack(key);
        pack(item);
      }
      return;
    }
    if (const Encoded* encoded = as_encoded(value); encoded != nullptr)
      return raw(PyBytes_AS_STRING(encoded->bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded->bytes)));
    const bool is_list = PyList_CheckExact(value);
    const Py_ssize_t count = is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value);
    length(static_cast<std::uint64_t>(count), 16, 0x90, 0xDB, false);
    for (Py_ssize_t i = 0; i < count; ++i) pack(is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i));
  }

  void bytes_head(std::uint64_t size) { length(size, 0, 0, 0xC4, true); }

  const char* end() const { return to_; }

 private:
  void byte(unsigned value) { *to_++ = static_cast<char>(value); }

  void raw(const void* data, std::size_t size) {
    std::memcpy(to_, data, size);
    to_ += size;
  }

  // A type byte and the last `size` bytes of the number, most significant first.
  void head(unsigned type, std::uint64_t number, int size) {
    byte(type);
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) byte(static_cast<unsigned>(number >> shift & 0xFF));
  }

  // A length below `tiny` is in the type byte. Else `wide` is the type with 8 bits where there is one (`has_8`), and those with
  // 16 and 32 bits follow it.
  void length(std::uint64_t size, std::uint64_t tiny, unsigned tiny_type, unsigned wide, bool has_8) {
    if (size < tiny) return byte(tiny_type | static_cast<unsigned>(size));
    if (has_8 && size <= 0xFF) return head(wide, size, 1);
    if (size <= 0xFFFF) return head(wide + 1, size, 2);
    head(wide + 2, size, 4);
  }

  void pack_int(long long number) {
    const auto bits = static_cast<std::uint64_t>(number);
    if (number >= -32 && number <= 127) return byte(static_cast<unsigned>(bits & 0xFF));
    if (number > 0) {
      if (number <= 0xFF) return head(0xCC, bits, 1);
      if (number <= 0xFFFF) return head(0xCD, bits, 2);
      return number <= 0xFFFFFFFFLL ? head(0xCE, bits, 4) : head(0xCF, bits, 8);
    }
    if (number >= -0x80) return head(0xD0, bits, 1);
    if (number >= -0x8000) return head(0xD1, bits, 2);
    return number >= -0x80000000LL ? head(0xD2, bits, 4) : head(0xD3, bits, 8);
  }

  void pack_text(PyObject* value) {
    const Py_ssize_t count = PyUnicode_GET_LENGTH(value);
    if (PyUnicode_IS_ASCII(value)) {
      const auto size = static_cast<std::uint64_t>(count);
      length(size, 32, 0xA0, 0xD9, true);
      return raw(PyUnicode_DATA(value), size);
    }
    std::uint64_t size = 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
      const Py_UCS4 character = PyUnicode_READ_CHAR(value, i);
      size += character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    }
    length(size, 32, 0xA0, 0xD9, true);
    for (Py_ssize_t i = 0; i < count; ++i) character_as_utf8(PyUnicode_READ_CHAR(value, i));
  }

  void character_as_utf8(Py_UCS4 character) {
    if (character < 0x80) return byte(character);
    const int more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;  // bytes after the first
    byte((0xFF00u >> (more + 1) & 0xFFu) | character >> 6 * more);
    for (int i = more - 1; i >= 0; --i) byte(0x80u | (character >> 6 * i & 0x3Fu));
  }

  char* to_;
};

}  // namespace

int pack_value(PyObject* value, char* to, std::int64_t size) {
  Packer packer(to);
  packer.pack(value);
  if (packer.end() - to == size) return 0;
  PyErr_SetString(PyExc_SystemError, "the size of a value's encoding is not the computed one");
  return -1;
}

void pack_bytes_head(std::uint64_t size, char* to) { Packer(to).bytes_head(size); }

PyObject* packed_value(PyObject* value) {
  const std::int64_t size = packed_size(value);
  if (size < 0) return nullptr;
  if (const Encoded* encoded = as_encoded(value); encoded != nullptr) return Py_NewRef(encoded->bytes);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (bytes != nullptr && pack_value(value, PyBytes_AS_STRING(bytes), size) < 0) Py_CLEAR(bytes);
  return bytes;
}

}  // namespace walle
