// Lists of task names as results of calls.
#pragma once
#include <Python.h>

#include <array>
#include <cstdint>
#include <span>

namespace walle {

struct TaskName {
  PyObject* text = nullptr;
  std::uint32_t rank = 0;  // place of the task among all, sorted by name
};

// The two latest lists are kept. One that its caller has dropped is filled again, as `zip` and `enumerate` do with their tuples:
// a new list and its array take longer than matching an event to ten conditions.
class TaskLists {
 public:
  TaskLists() = default;
  ~TaskLists();
  TaskLists(const TaskLists&) = delete;
  TaskLists& operator=(const TaskLists&) = delete;

  // Returns a list of the names that no one else has, as a new reference; null with a Python error. `dropped` becomes a list for
  // the caller to release when nothing is half done, or null: its caller may have put anything into it.
  PyObject* make(std::span<const TaskName> names, PyObject*& dropped);
  int traverse(visitproc visit, void* arg) const;
  void clear();  // what it releases may run any code

 private:
  std::array<PyObject*, 2> lists_{};
  std::size_t latest_ = 0;
};

}  // namespace walle
