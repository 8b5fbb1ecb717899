#include "bindings/stream/plain_objects.h"

#include <iterator>

#include "bindings/stream/encoded.h"

namespace walle {

using stream::Kind;
using stream::Value;

namespace {

PyObject* damaged() {
  PyErr_SetString(PyExc_ValueError, "the bytes are not plain data, or are nested deeper than 100 levels");
  return nullptr;
}

PyObject* container_of(stream::PackedReader& reader, const std::uint8_t* data, const Value& head, int depth) {
  if (depth == 0 || head.length > reader.left()) return damaged();  // an item has a byte or more
  if (head.kind == Kind::list) {
    PyObject* list = PyList_New(head.length);
    for (std::uint32_t i = 0; list != nullptr && i < head.length; ++i) {
      PyObject* item = object_of(reader, data, depth - 1);
      if (item == nullptr)
        Py_CLEAR(list);
      else
        PyList_SET_ITEM(list, i, item);
    }
    return list;
  }
  PyObject* dict = PyDict_New();
  for (std::uint32_t i = 0; dict != nullptr && i < head.length; ++i) {
    Value name;
    PyObject *key = nullptr, *item = nullptr;
    if (!reader.read(name) || name.kind != Kind::text)
      damaged();
    else
      key = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data) + name.place, name.length, nullptr);
    if (key != nullptr) item = object_of(reader, data, depth - 1);
    if (item == nullptr || PyDict_SetItem(dict, key, item) < 0) Py_CLEAR(dict);
    Py_XDECREF(key);
    Py_XDECREF(item);
  }
  return dict;
}

std::uint8_t* grow(stream::Vector<std::uint8_t>& out, std::size_t bytes) {
  const std::size_t size = out.size();
  out.resize(size + bytes);
  return out.data() + size;
}

template <typename Write, typename Number>
void append_head(stream::Vector<std::uint8_t>& out, Write write, Number number) {
  std::uint8_t head[stream::kMaxHeadBytes];
  out.insert(out.end(), head, write(head, number));
}

int append_integer(PyObject* object, stream::Vector<std::uint8_t>& out) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow == 0) {
    append_head(out, stream::write_integer, static_cast<std::int64_t>(number));
    return 0;
  }
  if (overflow < 0) return 1;
  const unsigned long long large = PyLong_AsUnsignedLongLong(object);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return 1;
  }
  append_head(out, stream::write_large, static_cast<std::uint64_t>(large));
  return 0;
}

int append_text(PyObject* object, stream::Vector<std::uint8_t>& out) {
  Py_ssize_t bytes = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &bytes);
  if (text == nullptr) {  // a lone surrogate
    PyErr_Clear();
    return 1;
  }
  if (bytes > UINT32_MAX) return 1;
  append_head(out, stream::write_text_head, static_cast<std::uint32_t>(bytes));
  std::memcpy(grow(out, static_cast<std::size_t>(bytes)), text, static_cast<std::size_t>(bytes));
  return 0;
}

}  // namespace

PyObject* object_of(stream::PackedReader& reader, const std::uint8_t* data, int depth) {
  Value value;
  if (!reader.read(value)) return damaged();
  switch (value.kind) {
    case Kind::nil: Py_RETURN_NONE;
    case Kind::boolean: return PyBool_FromLong(value.integer != 0);
    case Kind::integer: return PyLong_FromLongLong(value.integer);
    case Kind::large: return PyLong_FromUnsignedLongLong(value.large);
    case Kind::real: return PyFloat_FromDouble(value.real);
    case Kind::text: return PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data) + value.place, value.length, nullptr);
    case Kind::binary: return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(data) + value.place, value.length);
    case Kind::list:
    case Kind::map: return container_of(reader, data, value, depth);
    default: Py_RETURN_NONE;  // an extension, which columns do not hold
  }
}

PyObject* object_of(const Value& value, const std::uint8_t* data, std::size_t size) {
  if (value.kind == Kind::missing) Py_RETURN_NONE;
  if (value.kind == Kind::integer) return PyLong_FromLongLong(value.integer);
  if (value.kind == Kind::text)
    return PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data) + value.place, value.length, nullptr);
  if (value.kind == Kind::real) return PyFloat_FromDouble(value.real);
  if (value.kind == Kind::large) return PyLong_FromUnsignedLongLong(value.large);
  if (value.kind == Kind::boolean) return PyBool_FromLong(value.integer != 0);
  if (value.kind == Kind::nil) Py_RETURN_NONE;
  if (value.kind == Kind::binary)
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(data) + value.place, value.length);
  stream::PackedReader reader(data, size, value.kind == Kind::extension ? size : value.place);
  return object_of(reader, data);
}

namespace {

int append_exact(PyObject* object, stream::Vector<std::uint8_t>& out, bool lenient, int depth) {
  if (PyUnicode_CheckExact(object)) return append_text(object, out);
  if (PyLong_CheckExact(object)) return append_integer(object, out);
  if (object == Py_None || PyBool_Check(object)) {
    out.push_back(object == Py_None ? 0xc0 : object == Py_True ? 0xc3 : 0xc2);
    return 0;
  }
  if (PyFloat_CheckExact(object)) {
    append_head(out, stream::write_real, PyFloat_AS_DOUBLE(object));
    return 0;
  }
  if (PyBytes_CheckExact(object)) {
    const Py_ssize_t bytes = PyBytes_GET_SIZE(object);
    if (bytes > UINT32_MAX) return 1;
    append_head(out, stream::write_binary_head, static_cast<std::uint32_t>(bytes));
    std::memcpy(grow(out, static_cast<std::size_t>(bytes)), PyBytes_AS_STRING(object), static_cast<std::size_t>(bytes));
    return 0;
  }
  if (depth == 0) return 1;
  if (PyDict_CheckExact(object)) {
    if (PyDict_GET_SIZE(object) > UINT32_MAX) return 1;
    append_head(out, stream::write_map_head, static_cast<std::uint32_t>(PyDict_GET_SIZE(object)));
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *item = nullptr;
    while (PyDict_Next(object, &at, &key, &item)) {
      if (!PyUnicode_CheckExact(key)) return 1;
      int left = append_text(key, out);
      if (left == 0) left = append_packed(item, out, lenient, depth - 1);
      if (left != 0) return left;
    }
    return 0;
  }
  if (const Encoded* encoded = as_encoded(object); encoded != nullptr) {
    if (encoded->depth > depth) return 1;
    const auto bytes = static_cast<std::size_t>(PyBytes_GET_SIZE(encoded->bytes));
    std::memcpy(grow(out, bytes), PyBytes_AS_STRING(encoded->bytes), bytes);
    return 0;
  }
  const bool is_list = PyList_CheckExact(object);
  if (!is_list && !PyTuple_CheckExact(object)) return 1;
  const Py_ssize_t length = is_list ? PyList_GET_SIZE(object) : PyTuple_GET_SIZE(object);
  if (length > UINT32_MAX) return 1;
  append_head(out, stream::write_list_head, static_cast<std::uint32_t>(length));
  for (Py_ssize_t i = 0; i < length; ++i) {
    const int left = append_packed(is_list ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i), out, lenient, depth - 1);
    if (left != 0) return left;
  }
  return 0;
}

}  // namespace

int append_packed(PyObject* object, stream::Vector<std::uint8_t>& out, bool lenient, int depth) {
  const std::size_t size = out.size();
  const int left = append_exact(object, out, lenient, depth);
  if (left != 1 || !lenient) return left;
  static constexpr std::uint8_t kStandIn[] = {0xc7, 0, 0x7f};
  out.resize(size);
  out.insert(out.end(), std::begin(kStandIn), std::end(kStandIn));
  return 0;
}

}  // namespace walle
