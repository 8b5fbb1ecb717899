#include "bindings/stream/plain_objects.h"

#include <iterator>

#include "bindings/stream/plain_walk.h"

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

// Sink that appends. If it is lenient, an extension without bytes stands in place of each value that walle.base.plain must decide
// on.
class PlainVector {
 public:
  PlainVector(stream::Vector<std::uint8_t>& out, bool lenient) : out_(out), lenient_(lenient) {}

  void nil() { out_.push_back(0xc0); }
  void boolean(bool truth) { out_.push_back(truth ? 0xc3 : 0xc2); }
  void integer(std::int64_t number) { head(stream::write_integer, number); }
  void large(std::uint64_t number) { head(stream::write_large, number); }
  void real(double number) { head(stream::write_real, number); }
  void text(PyObject* text, std::uint32_t bytes) {
    head(stream::write_text_head, bytes);
    write_utf8(text, grow(bytes));
  }
  void binary(const char* data, std::size_t bytes) {
    head(stream::write_binary_head, static_cast<std::uint32_t>(bytes));
    copy(data, bytes);
  }
  void list(std::uint32_t items) { head(stream::write_list_head, items); }
  void map(std::uint32_t pairs) { head(stream::write_map_head, pairs); }
  void copy(const char* data, std::size_t bytes) { std::memcpy(grow(bytes), data, bytes); }
  std::size_t mark() const noexcept { return out_.size(); }
  bool substitute(std::size_t mark) {
    if (!lenient_) return false;
    static constexpr std::uint8_t kStandIn[] = {0xc7, 0, 0x7f};
    out_.resize(mark);
    out_.insert(out_.end(), std::begin(kStandIn), std::end(kStandIn));
    return true;
  }

 private:
  std::uint8_t* grow(std::size_t bytes) {
    const std::size_t size = out_.size();
    out_.resize(size + bytes);
    return out_.data() + size;
  }
  template <typename Write, typename Number>
  void head(Write write, Number number) {
    std::uint8_t head[stream::kMaxHeadBytes];
    out_.insert(out_.end(), head, write(head, number));
  }

  stream::Vector<std::uint8_t>& out_;
  bool lenient_;
};

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

bool append_packed(PyObject* object, stream::Vector<std::uint8_t>& out, bool lenient) {
  PlainVector sink(out, lenient);
  return PlainWalk(sink).write(object, stream::kMaxDepth);
}

}  // namespace walle
