// Plain data, as C++ writes it: the one walk over Python objects, for sinks that measure, write or append. walle.base.plain is
// the same in Python, and decides on what this leaves to it: arrays, subclasses, and what must be refused.
#pragma once
#include <Python.h>

#include <cstdint>

#include "bindings/stream/encoded.h"
#include "stream/packed_heads.h"

namespace walle {

// Returns the bytes of a text in UTF-8; -1 where it has a lone surrogate, which UTF-8 cannot express.
inline std::int64_t utf8_bytes(PyObject* text) noexcept {
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  if (PyUnicode_IS_ASCII(text)) return length;
  std::int64_t bytes = 0;
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 character = PyUnicode_READ_CHAR(text, i);
    if (Py_UNICODE_IS_SURROGATE(character)) return -1;
    bytes += character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
  }
  return bytes;
}

// Writes a text of which utf8_bytes is not -1. Returns the end.
inline std::uint8_t* write_utf8(PyObject* text, std::uint8_t* to) noexcept {
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  if (PyUnicode_IS_ASCII(text)) {
    std::memcpy(to, PyUnicode_DATA(text), static_cast<std::size_t>(length));
    return to + length;
  }
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 character = PyUnicode_READ_CHAR(text, i);
    if (character < 0x80) {
      *to++ = static_cast<std::uint8_t>(character);
      continue;
    }
    const int more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;  // bytes after the first
    *to++ = static_cast<std::uint8_t>(0xFF00u >> (more + 1) | character >> 6 * more);
    for (int left = more - 1; left >= 0; --left) *to++ = static_cast<std::uint8_t>(0x80u | (character >> 6 * left & 0x3Fu));
  }
  return to;
}

// A Sink has nil, boolean, integer, large, real, text(object, bytes), binary(data, bytes), list(items), map(pairs), copy(data,
// bytes), and mark() with substitute(mark), which puts something in the place of a value that walle.base.plain must decide on, or
// returns false.
template <class Sink>
class PlainWalk {
 public:
  explicit PlainWalk(Sink& sink) : sink_(sink) {}

  // Writes the object, of at most `levels` containers in containers. Returns false where walle.base.plain must decide. Runs no
  // Python code and sets no Python error.
  bool write(PyObject* object, int levels) {
    const auto mark = sink_.mark();
    return write_exact(object, levels) || sink_.substitute(mark);
  }

 private:
  static constexpr std::int64_t kMaxLength = UINT32_MAX;

  bool write_exact(PyObject* object, int levels) {
    if (PyUnicode_CheckExact(object)) return write_text(object);
    if (PyLong_CheckExact(object)) return write_integer(object);
    if (object == Py_None) return sink_.nil(), true;
    if (PyBool_Check(object)) return sink_.boolean(object == Py_True), true;
    if (PyFloat_CheckExact(object)) return sink_.real(PyFloat_AS_DOUBLE(object)), true;
    if (PyBytes_CheckExact(object)) {
      if (PyBytes_GET_SIZE(object) > kMaxLength) return false;
      sink_.binary(PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object)));
      return true;
    }
    if (levels == 0) return false;
    if (PyDict_CheckExact(object)) return write_dict(object, levels);
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) return write_sequence(object, levels);
    const Encoded* encoded = as_encoded(object);
    if (encoded == nullptr || encoded->depth > levels) return false;
    sink_.copy(PyBytes_AS_STRING(encoded->bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded->bytes)));
    return true;
  }

  bool write_text(PyObject* text) {
    const std::int64_t bytes = utf8_bytes(text);
    if (bytes < 0 || bytes > kMaxLength) return false;
    sink_.text(text, static_cast<std::uint32_t>(bytes));
    return true;
  }

  bool write_integer(PyObject* object) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) return sink_.integer(number), true;
    if (overflow < 0) return false;
    const unsigned long long large = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred() != nullptr) return PyErr_Clear(), false;
    return sink_.large(large), true;
  }

  bool write_dict(PyObject* dict, int levels) {
    if (PyDict_GET_SIZE(dict) > kMaxLength) return false;
    sink_.map(static_cast<std::uint32_t>(PyDict_GET_SIZE(dict)));
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *item = nullptr;
    while (PyDict_Next(dict, &at, &key, &item))
      if (!PyUnicode_CheckExact(key) || !write_text(key) || !write(item, levels - 1)) return false;
    return true;
  }

  bool write_sequence(PyObject* sequence, int levels) {
    const bool is_list = PyList_CheckExact(sequence);
    const Py_ssize_t length = is_list ? PyList_GET_SIZE(sequence) : PyTuple_GET_SIZE(sequence);
    if (length > kMaxLength) return false;
    sink_.list(static_cast<std::uint32_t>(length));
    for (Py_ssize_t i = 0; i < length; ++i)
      if (!write(is_list ? PyList_GET_ITEM(sequence, i) : PyTuple_GET_ITEM(sequence, i), levels - 1)) return false;
    return true;
  }

  Sink& sink_;
};

// Sink that counts the bytes.
class PlainSize {
 public:
  struct Mark {};

  std::int64_t bytes() const noexcept { return bytes_; }

  void nil() noexcept { ++bytes_; }
  void boolean(bool) noexcept { ++bytes_; }
  void integer(std::int64_t number) noexcept {
    bytes_ += number >= -32 && number <= 127                ? 1
              : number >= -128 && number <= 255             ? 2
              : number >= -32768 && number <= 65535         ? 3
              : number >= INT32_MIN && number <= UINT32_MAX ? 5
                                                            : 9;
  }
  void large(std::uint64_t) noexcept { bytes_ += 9; }
  void real(double) noexcept { bytes_ += 9; }
  void text(PyObject*, std::uint32_t bytes) noexcept { bytes_ += std::int64_t{bytes} + (bytes < 32 ? 1 : wide_head(bytes)); }
  void binary(const char*, std::size_t bytes) noexcept {
    bytes_ += static_cast<std::int64_t>(bytes) + wide_head(static_cast<std::uint32_t>(bytes));
  }
  void list(std::uint32_t items) noexcept { bytes_ += items < 16 ? 1 : items <= 0xffff ? 3 : 5; }
  void map(std::uint32_t pairs) noexcept { list(pairs); }
  void copy(const char*, std::size_t bytes) noexcept { bytes_ += static_cast<std::int64_t>(bytes); }
  Mark mark() const noexcept { return {}; }
  bool substitute(Mark) const noexcept { return false; }

 private:
  static std::int64_t wide_head(std::uint32_t bytes) noexcept { return bytes <= 0xff ? 2 : bytes <= 0xffff ? 3 : 5; }

  std::int64_t bytes_ = 0;
};

// Sink that writes into memory that packed_size has measured.
class PlainMemory {
 public:
  struct Mark {};

  explicit PlainMemory(char* to) : to_(reinterpret_cast<std::uint8_t*>(to)) {}

  const std::uint8_t* end() const noexcept { return to_; }

  void nil() noexcept { *to_++ = 0xc0; }
  void boolean(bool truth) noexcept { *to_++ = truth ? 0xc3 : 0xc2; }
  void integer(std::int64_t number) noexcept { to_ = stream::write_integer(to_, number); }
  void large(std::uint64_t number) noexcept { to_ = stream::write_large(to_, number); }
  void real(double number) noexcept { to_ = stream::write_real(to_, number); }
  void text(PyObject* text, std::uint32_t bytes) noexcept { to_ = write_utf8(text, stream::write_text_head(to_, bytes)); }
  void binary(const char* data, std::size_t bytes) noexcept {
    binary_head(static_cast<std::uint32_t>(bytes));
    copy(data, bytes);
  }
  void binary_head(std::uint32_t bytes) noexcept { to_ = stream::write_binary_head(to_, bytes); }
  void list(std::uint32_t items) noexcept { to_ = stream::write_list_head(to_, items); }
  void map(std::uint32_t pairs) noexcept { to_ = stream::write_map_head(to_, pairs); }
  void copy(const char* data, std::size_t bytes) noexcept {
    std::memcpy(to_, data, bytes);
    to_ += bytes;
  }
  Mark mark() const noexcept { return {}; }
  bool substitute(Mark) const noexcept { return false; }

 private:
  std::uint8_t* to_;
};

}  // namespace walle
