#include "bindings/stream/task_lists.h"

#include <utility>

namespace walle {

namespace {

// Empties the list and returns true; false, with some of its items left, if releasing them might run code of Python.
bool clear_texts(PyListObject* list) noexcept {
  for (Py_ssize_t left = Py_SIZE(list); left > 0;) {
    PyObject* item = list->ob_item[--left];
    if (!PyUnicode_CheckExact(item)) return false;
    Py_SET_SIZE(list, left);
    Py_DECREF(item);
  }
  return true;
}

}  // namespace

TaskLists::~TaskLists() {
  for (PyObject* list : lists_) Py_XDECREF(list);
}

int TaskLists::traverse(visitproc visit, void* arg) const {
  for (PyObject* list : lists_) Py_VISIT(list);
  return 0;
}

void TaskLists::clear() {
  for (PyObject*& list : lists_) Py_CLEAR(list);
}

PyObject* TaskLists::make(std::span<const TaskName> names, PyObject*& dropped) {
  const auto length = static_cast<Py_ssize_t>(names.size());
  latest_ ^= 1;
  PyObject* list = lists_[latest_];
  const auto has_room = [length](PyObject* kept) { return reinterpret_cast<PyListObject*>(kept)->allocated >= length; };
  if (list != nullptr && Py_REFCNT(list) == 1 && has_room(list) && clear_texts(reinterpret_cast<PyListObject*>(list))) {
    Py_SET_SIZE(list, length);
  } else {
    dropped = std::exchange(lists_[latest_], PyList_New(length));
    list = lists_[latest_];
    if (list == nullptr) return nullptr;
  }
  for (Py_ssize_t i = 0; i < length; ++i) PyList_SET_ITEM(list, i, Py_NewRef(names[static_cast<std::size_t>(i)].text));
  return Py_NewRef(list);
}

}  // namespace walle
