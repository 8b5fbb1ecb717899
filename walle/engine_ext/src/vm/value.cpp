#include "vm/value.h"

#include <cctype>

namespace walle::vm {

namespace {

constexpr std::size_t kShownBytes = 80;  // bytes shown of a name that the task chose: a message must have room for what is wrong

// Returns the beginning of a text in UTF-8, in whole characters.
std::string shortened(const std::string& text, std::size_t most = kShownBytes) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most) + "...";
}

std::string type_name(PyObject* object) { return shortened(Py_TYPE(object)->tp_name); }

// One strong reference.
class Ref {
 public:
  explicit Ref(PyObject* owned = nullptr) : object_(owned) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Walks one object. Holds a reference to each item while it reads it, and reads sizes again at each step, because an array's
// `__buffer__` may be Python code that changes the containers around it.
class Reader {
 public:
  Reader(const ArrayPort& port, const std::string& root, const Limits& limits) : port_(port), root_(root), limits_(limits) {}

  Value read(PyObject* object) {
    count_all_bytes(kItemBytes);
    if (++nodes_ > limits_.nodes) fail("has more than " + std::to_string(limits_.nodes) + " items");
    if (object == Py_None) return {};
    if (PyBool_Check(object)) return {object == Py_True};
    if (PyLong_Check(object)) return read_int(object);
    if (PyFloat_Check(object)) return {PyFloat_AS_DOUBLE(object)};
    if (PyUnicode_Check(object)) return read_text(object);
    if (PyBytes_Check(object)) {
      count_bytes(PyBytes_GET_SIZE(object));
      return {Bytes{std::string(PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object)))}};
    }
    if (PyList_Check(object) || PyTuple_Check(object) || PyDict_Check(object)) return read_container(object);
    if (Encoded encoded; port_.to_encoded(object, encoded)) {
      count_bytes(static_cast<Py_ssize_t>(encoded.data.size()));
      nodes_ += static_cast<std::int64_t>(encoded.data.size());  // an item has a byte or more
      if (nodes_ > limits_.nodes) fail("has more than " + std::to_string(limits_.nodes) + " items, or bytes of encoded ones");
      if (static_cast<int>(steps_.size()) + encoded.depth > limits_.depth) fail_depth();
      return {std::move(encoded)};
    }
    return read_array(object);
  }

 private:
  struct Step {
    PyObject* container;  // borrowed: the walk holds a reference
    Py_ssize_t index;
    PyObject* key;  // likewise; null in a sequence
  };

  [[noreturn]] void fail(const std::string& what) const { throw NotPlain(here() + " " + what); }

  [[noreturn]] void fail_depth() const { fail("is nested deeper than " + std::to_string(limits_.depth) + " levels"); }

  std::string here() const {
    std::string where = root_;
    for (const Step& step : steps_) {
      where += step.key == nullptr ? "[" + std::to_string(step.index) + "]" : key_step(step.key);
      if (where.size() > 400) {
        where += "...";
        break;
      }
    }
    return where;
  }

  // Returns ".prices" for a key that is a name, else '["list price"]'.
  static std::string key_step(PyObject* key) {
    const char* utf8 = PyUnicode_AsUTF8(key);
    PyErr_Clear();
    if (utf8 == nullptr) return "[?]";
    const std::string text(utf8);
    bool is_name = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0;
    for (const char character : text)
      is_name = is_name && (std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_');
    return is_name ? "." + shortened(text) : "[\"" + shortened(text) + "\"]";
  }

  // Returns the start of the object's repr; "" for objects whose repr is code of the task.
  static std::string shown(PyObject* object) {
    if (!PyLong_CheckExact(object) && !PyFloat_CheckExact(object) && !PyTuple_CheckExact(object) && !PyBytes_CheckExact(object))
      return "";
    if (PyTuple_CheckExact(object))
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
        PyObject* item = PyTuple_GET_ITEM(object, i);
        if (!PyLong_CheckExact(item) && !PyUnicode_CheckExact(item)) return "";
      }
    const Ref text(PyObject_Repr(object));  // fails for an int of thousands of digits
    const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    std::string start = utf8 != nullptr ? " " + shortened(utf8, 40) : "";
    PyErr_Clear();
    return start;
  }

  void count_all_bytes(std::int64_t size) {
    all_bytes_ += size;
    if (limits_.all_bytes > 0 && all_bytes_ > limits_.all_bytes)
      throw TooLarge(here() + " makes the value larger than " + std::to_string(limits_.all_bytes) + " bytes");
  }

  void count_bytes(Py_ssize_t size) {
    bytes_ += size;
    count_all_bytes(size);
    if (bytes_ > limits_.bytes)
      fail("makes the value larger than " + std::to_string(limits_.bytes) + " bytes; send arrays instead");
  }

  Value read_int(PyObject* object) {
    int overflow = 0;
    const long long small = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) return {std::int64_t{small}};
    PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      fail("is an int of more than 64 bits; send it as a float, or as text: str(value)");
    }
    Ref hex(PyNumber_ToBase(object, 16));
    const char* utf8 = hex ? PyUnicode_AsUTF8(hex.get()) : nullptr;
    if (utf8 == nullptr) fail("cannot be read (" + take_error_text() + ")");
    std::string text(utf8);
    count_bytes(static_cast<Py_ssize_t>(text.size()));
    return {BigInt{std::move(text)}};
  }

  Value read_text(PyObject* object) {
    Py_ssize_t size = 0;
    if (const char* utf8 = PyUnicode_AsUTF8AndSize(object, &size)) {
      count_bytes(size);
      return {Text{std::string(utf8, static_cast<std::size_t>(size))}};
    }
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) fail("cannot be read (" + take_error_text() + ")");
    PyErr_Clear();
    fail("is text with a lone surrogate, which UTF-8 cannot express; send text.encode('utf-8', 'replace').decode()");
  }

  Value read_container(PyObject* object) {
    for (const Step& step : steps_)
      if (step.container == object) fail("refers to a container that contains it; plain data has no cycles");
    if (static_cast<int>(steps_.size()) >= limits_.depth) fail_depth();
    steps_.push_back({object, 0, nullptr});
    Value value = PyDict_Check(object) ? read_dict(object) : read_sequence(object);
    steps_.pop_back();
    return value;
  }

  Value read_sequence(PyObject* object) {
    const bool is_list = PyList_Check(object);
    const auto size = [&] { return is_list ? PyList_GET_SIZE(object) : PyTuple_GET_SIZE(object); };
    Items items;
    items.reserve(static_cast<std::size_t>(size()));
    for (Py_ssize_t i = 0; i < size(); ++i) {
      steps_.back().index = i;
      const Ref item(Py_NewRef(is_list ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i)));
      items.push_back(read(item.get()));
    }
    if (is_list) return {List{std::move(items)}};
    return {Tuple{std::move(items)}};
  }

  Value read_dict(PyObject* object) {
    Dict dict;
    const Py_ssize_t size = PyDict_GET_SIZE(object);
    dict.keys.reserve(static_cast<std::size_t>(size));
    dict.values.reserve(static_cast<std::size_t>(size));
    PyObject *key = nullptr, *item = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(object, &position, &key, &item);) {
      const Ref held_key(Py_NewRef(key)), held_item(Py_NewRef(item));
      steps_.back().key = nullptr;
      if (!PyUnicode_Check(key)) fail_key(key);
      steps_.back().key = key;
      dict.keys.push_back(read(key));
      dict.values.push_back(read(item));
      if (PyDict_GET_SIZE(object) != size) fail("changed its dict while the dict was read");
    }
    return {std::move(dict)};
  }

  [[noreturn]] void fail_key(PyObject* key) {
    steps_.pop_back();  // the dict is named, which has no step for such a key
    fail("has the key" + shown(key) + " of type " + type_name(key) +
         "; keys of plain data are str: use str(key), or a list of pairs");
  }

  // Of an array without axes, as np.mean gives it. Its receiver wants the number.
  Value read_scalar(PyObject* object) {
    const Ref number(PyObject_CallMethod(object, "tolist", nullptr));
    if (!number) fail("is a scalar that cannot be read (" + take_error_text() + ")");
    if (!PyFloat_CheckExact(number.get()) && !PyLong_CheckExact(number.get()) && !PyBool_Check(number.get()))
      fail("is a scalar of type " + type_name(number.get()) + "; send its parts as numbers");
    return read(number.get());
  }

  // Returns what to send in place of an object of this type.
  static const char* advice_for(PyObject* object) {
    const std::string kind = Py_TYPE(object)->tp_name;
    if (PyAnySet_Check(object)) return "send a list: sorted(value)";
    if (kind == "datetime.datetime" || kind == "datetime.date" || kind == "datetime.time") return "send text: value.isoformat()";
    if (kind == "decimal.Decimal" || kind == "fractions.Fraction") return "send float(value) or str(value)";
    if (PyComplex_Check(object)) return "send a list: [value.real, value.imag]";
    return "send None, bool, int, float, str, bytes, list, tuple, dict or an array";
  }

  Value read_array(PyObject* object) {
    Tensor tensor;
    bool is_array = false;
    const std::string kind = type_name(object);
    if (kind == "numpy.datetime64" || kind == "numpy.timedelta64")  // lend a buffer of eight bytes
      fail("is of type " + kind + ", which is not plain data; send text: str(value)");
    try {
      is_array = port_.to_tensor(object, tensor);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      fail(std::string("is an array that cannot be sent: ") + error.what());
    }
    if (is_array && tensor.shape().empty()) return read_scalar(object);
    if (is_array) {
      count_all_bytes(kAxisBytes * static_cast<std::int64_t>(tensor.ndim()));
      count_all_bytes(tensor.size() * static_cast<std::int64_t>(item_size(tensor.dtype())));
      return {std::move(tensor)};
    }
    if (PyErr_Occurred() != nullptr) fail("of type " + kind + " cannot be read (" + take_error_text() + ")");
    fail("is of type " + kind + ", which is not plain data; " + advice_for(object));
  }

  const ArrayPort& port_;
  const std::string& root_;
  const Limits& limits_;
  std::vector<Step> steps_;
  std::int64_t nodes_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t all_bytes_ = 0;
};

template <class... Ts>
struct Overload : Ts... {
  using Ts::operator()...;
};

PyObject* sequence_to_python(PyObject* sequence, const Items& items, const ArrayPort& port, bool is_list) {
  Ref owned(sequence);
  if (!owned) return nullptr;
  for (std::size_t i = 0; i < items.size(); ++i) {
    PyObject* item = to_python(items[i], port);
    if (item == nullptr) return nullptr;
    if (is_list)
      PyList_SET_ITEM(sequence, static_cast<Py_ssize_t>(i), item);
    else
      PyTuple_SET_ITEM(sequence, static_cast<Py_ssize_t>(i), item);
  }
  return owned.release();
}

PyObject* large_to_python(const BigInt& number) {
  Ref object(PyLong_FromString(number.hex.c_str(), nullptr, 16));
  if (object) PyLong_AsUnsignedLongLong(object.get());  // fails with a Python error beyond 64 bits
  return PyErr_Occurred() == nullptr ? object.release() : nullptr;
}

PyObject* dict_to_python(const Dict& dict, const ArrayPort& port) {
  Ref object(PyDict_New());
  if (!object) return nullptr;
  for (std::size_t i = 0; i < dict.keys.size(); ++i) {
    const Ref key(to_python(dict.keys[i], port));
    if (key && !PyUnicode_CheckExact(key.get())) PyErr_SetString(PyExc_ValueError, "a dict has a key that is not str");
    if (!key || PyErr_Occurred() != nullptr) return nullptr;
    const Ref item(to_python(dict.values[i], port));
    if (!item || PyDict_SetItem(object.get(), key.get(), item.get()) != 0) return nullptr;
  }
  return object.release();
}

}  // namespace

std::string take_error_text() {
  const Ref error(PyErr_GetRaisedException());
  if (!error) return "unknown error";
  const Ref message(PyObject_Str(error.get()));
  const char* utf8 = message ? PyUnicode_AsUTF8(message.get()) : nullptr;
  PyErr_Clear();
  return type_name(error.get()) + (utf8 ? std::string(": ") + utf8 : std::string());
}

Value from_python(PyObject* object, const ArrayPort& port, const std::string& root, const Limits& limits) {
  return Reader(port, root, limits).read(object);
}

PyObject* to_python(const Value& value, const ArrayPort& port) {
  return std::visit(
      Overload{
          [](std::monostate) { return Py_NewRef(Py_None); },
          [](bool truth) { return PyBool_FromLong(truth); },
          [](std::int64_t number) { return PyLong_FromLongLong(number); },
          [](const BigInt& number) { return large_to_python(number); },
          [](double number) { return PyFloat_FromDouble(number); },
          [](const Text& text) {
            return PyUnicode_DecodeUTF8(text.utf8.data(), static_cast<Py_ssize_t>(text.utf8.size()), nullptr);
          },
          [](const Bytes& bytes) {
            return PyBytes_FromStringAndSize(bytes.data.data(), static_cast<Py_ssize_t>(bytes.data.size()));
          },
          [&](const Encoded& encoded) { return port.encoded_to_object(encoded); },
          [&](const List& list) {
            return sequence_to_python(PyList_New(static_cast<Py_ssize_t>(list.items.size())), list.items, port, true);
          },
          [&](const Tuple& tuple) {
            return sequence_to_python(PyTuple_New(static_cast<Py_ssize_t>(tuple.items.size())), tuple.items, port, false);
          },
          [&](const Dict& dict) { return dict_to_python(dict, port); },
          [&](const Tensor& tensor) { return port.to_object(tensor); },
      },
      value.data);
}

}  // namespace walle::vm
