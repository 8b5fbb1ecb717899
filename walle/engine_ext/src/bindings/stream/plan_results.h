// Results of a plan as they are computed: Python objects, or the bytes of plain data.
#pragma once
#include "bindings/stream/event_plan.h"
#include "stream/packed_writer.h"

namespace walle::columns {

// A Python error is set.
struct PythonError {};

// Both classes below take values in the order of the template. A container begins with `open` and ends with `close_*`, which take
// the mark of before; a pair of a map is its key and its value. `undo` removes all that came after a mark.

// Makes Python objects. Throws PythonError.
class ObjectResults {
 public:
  using Mark = std::size_t;

  explicit ObjectResults(const Batch& batch) : batch_(batch) { stack_.reserve(64); }
  ~ObjectResults() { undo(0); }
  ObjectResults(const ObjectResults&) = delete;
  ObjectResults& operator=(const ObjectResults&) = delete;

  void value(const Value& value) { push(batch_.object(value)); }
  void whole(__int128 number) { push(object_of_whole(number)); }
  void text(std::string_view text) { push(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr)); }
  void object(PyObject* object) { push(Py_NewRef(object)); }
  void constant(const Node& node) { object(node.object); }
  void key(PyObject* key, std::string_view) { object(key); }

  Mark mark() const noexcept { return stack_.size(); }
  void undo(Mark mark) noexcept {
    while (stack_.size() > mark) {
      Py_DECREF(stack_.back());
      stack_.pop_back();
    }
  }
  void open(std::size_t) {}
  void close_map(Mark mark, std::size_t, std::size_t) {
    Owned dict(PyDict_New());
    for (std::size_t i = mark; dict.get() != nullptr && i < stack_.size(); i += 2)
      if (PyDict_SetItem(dict.get(), stack_[i], stack_[i + 1]) < 0) throw PythonError{};
    undo(mark);
    push(dict.release());
  }
  void close_list(Mark mark, std::size_t, std::size_t items) {
    push(make_list(items, [&](std::size_t i) { return Py_NewRef(stack_[mark + i]); }));
    PyObject* list = stack_.back();
    stack_.pop_back();
    undo(mark);
    stack_.push_back(list);
  }

  PyObject* take() noexcept {
    PyObject* object = stack_.back();
    stack_.pop_back();
    return object;
  }

 private:
  // Takes a new reference.
  void push(PyObject* object) {
    if (object == nullptr) throw PythonError{};
    if (stack_.size() == stack_.capacity()) {
      Owned held(object);
      stack_.reserve(2 * stack_.size());
      (void)held.release();
    }
    stack_.push_back(object);
  }

  const Batch& batch_;
  stream::Vector<PyObject*> stack_;
};

// Writes bytes. Throws EventFault for a result that is not plain data.
class PackedResults {
 public:
  using Mark = stream::PackedWriter::Mark;

  explicit PackedResults(const EventBatch& events) : events_(events) {}

  void value(const Value& value) { writer_.copy(value, events_.data(), events_.data_size()); }
  void whole(__int128) { throw EventFault{"plan", "has a sum of more than 64 bits, which plain data does not hold"}; }
  void text(std::string_view text) { writer_.text(text); }
  void object(PyObject* object);
  void constant(const Node& node) { object(node.object); }
  void key(PyObject*, std::string_view packed) {
    if (packed.empty())
      throw EventFault{"plan", "has results of all events under None, which cannot be encoded; use result_plan"};
    writer_.written(packed);
  }

  Mark mark() const noexcept { return writer_.mark(); }
  void undo(Mark mark) noexcept { writer_.undo(mark); }
  void open(std::size_t most_items) { writer_.open(most_items); }
  void close_map(Mark mark, std::size_t most_items, std::size_t pairs) { writer_.close_map(mark, most_items, pairs); }
  void close_list(Mark mark, std::size_t most_items, std::size_t items) { writer_.close_list(mark, most_items, items); }

  PyObject* take(PyTypeObject* encoded_type);

 private:
  const EventBatch& events_;
  stream::PackedWriter writer_;
};

}  // namespace walle::columns
