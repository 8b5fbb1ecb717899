// Objects of event columns that several files share: the batch with its Python strings, views, groups, numbers and errors.
#pragma once
#include <Python.h>

#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "bindings/stream/plain_objects.h"
#include "stream/event_groups.h"

namespace walle::columns {

using stream::EventBatch;
using stream::EventFault;
using stream::FieldPath;
using stream::Kind;
using stream::Value;
using Rows = stream::Vector<std::uint32_t>;

// The types of this interpreter.
struct Types {
  PyTypeObject *view, *groups;
};

// A batch with the Python strings of its ids, which are made once.
struct Batch {
  Batch(std::shared_ptr<const EventBatch> given, Types types)
      : events(std::move(given)),
        view_type(reinterpret_cast<PyTypeObject*>(Py_NewRef(types.view))),
        groups_type(reinterpret_cast<PyTypeObject*>(Py_NewRef(types.groups))) {
    texts.assign(events->id_count(), nullptr);
  }
  ~Batch() {
    for (PyObject* text : texts) Py_XDECREF(text);
    Py_DECREF(view_type);
    Py_DECREF(groups_type);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Returns a new reference.
  PyObject* text(std::uint32_t id) {
    if (texts[id] == nullptr) {
      const std::string_view bytes = events->id(id);
      texts[id] = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr);
    }
    return Py_XNewRef(texts[id]);
  }
  PyObject* object(const Value& value) const { return object_of(value, events->data(), events->data_size()); }

  std::shared_ptr<const EventBatch> events;
  PyTypeObject *view_type, *groups_type;
  stream::Vector<PyObject*> texts;
};

struct View {
  std::shared_ptr<Batch> batch;
  Rows rows;
};

struct Groups {
  std::shared_ptr<Batch> batch;
  stream::EventGroups groups;
};

template <typename State>
struct Object {
  PyObject_HEAD State* state;
};

// Objects are made by functions of this module alone, and types cannot be changed.
inline constexpr unsigned kTypeFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE;

template <typename Call>
PyCFunction fast_method(Call* call) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call));
}

inline View& view_of(PyObject* self) { return *reinterpret_cast<Object<View>*>(self)->state; }
inline Groups& groups_of(PyObject* self) { return *reinterpret_cast<Object<Groups>*>(self)->state; }

template <typename State>
PyObject* create(PyTypeObject* type, std::unique_ptr<State> state) {
  auto* self = reinterpret_cast<Object<State>*>(type->tp_alloc(type, 0));
  if (self != nullptr) self->state = state.release();
  return reinterpret_cast<PyObject*>(self);
}

template <typename State>
void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Object<State>*>(self)->state;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* refuse(const EventFault& fault);

// Calls `body`, which returns an object or a null pointer with a Python error. No C++ exception may leave it. Faults become
// ValueError(field, what), of which walle.pipeline.stream.events makes EventError.
template <typename Body>
PyObject* call_checked(Body body) noexcept {
  try {
    return body();
  } catch (const EventFault& fault) {
    return refuse(fault);
  } catch (const std::exception&) {  // std::bad_alloc, and std::length_error of a vector
    return PyErr_NoMemory();
  }
}

// Returns false with a TypeError where the object is not UTF-8 text.
bool read_text(PyObject* object, const char* what, std::string_view& text);
bool check_count(const char* name, Py_ssize_t count, Py_ssize_t expected);

// A reference that is released where an exception leaves.
class Owned {
 public:
  explicit Owned(PyObject* object) noexcept : object_(object) {}
  ~Owned() { Py_XDECREF(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// Returns a list of `size` items, of which `item` makes one after the other.
template <typename Item>
PyObject* make_list(std::size_t size, Item item) {
  Owned list(PyList_New(static_cast<Py_ssize_t>(size)));
  for (std::size_t i = 0; list.get() != nullptr && i < size; ++i) {
    PyObject* object = item(i);
    if (object == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), object);
  }
  return list.release();
}

// Python objects of numbers. A mean without numbers is None.
PyObject* object_of_whole(__int128 number);
PyObject* object_of_total(const stream::Total& total);
PyObject* mean_of(const stream::Total& total);
double real_of(const Value& number) noexcept;
// Returns whether the value is a number of at most `limit` in size, which NaN is not.
bool is_within(const Value& value, double limit) noexcept;
inline constexpr std::size_t kMaxDigits = 20;  // digits of an integer of 64 bits, with its sign
// Returns the first `max_chars` characters of a text, the digits of an integer of at most `limit` in size, "" otherwise. The view
// is of the events' bytes, or of `digits`.
std::string_view text_of(const EventBatch& events, const Value& value, Py_ssize_t max_chars, std::int64_t limit,
                         char (&digits)[kMaxDigits]);
// The same as a Python object.
PyObject* text_object(const EventBatch& events, const Value& value, Py_ssize_t max_chars, std::int64_t limit);
// Returns the times between each row and the next one, 0 where time went back.
stream::Vector<Value> gaps_of(const EventBatch& events, const Rows& rows);
// Keeps the numbers of at most `limit` in size, as reals. Others become `fallback`, and are removed without one.
void keep_numbers(stream::Vector<Value>& values, const double* fallback, double limit);

}  // namespace walle::columns
