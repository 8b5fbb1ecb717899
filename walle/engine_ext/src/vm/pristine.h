// What an interpreter is before a task moves in, and the way back to it: every object that exists then is kept with its
// contents, so that what a task changed in it is found and put back, and what the task left behind is found too (§4.3).
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace walle::vm {

// All under the GIL of the one interpreter that it belongs to.
//
// What Python code can change is kept by kind: the items of dicts, lists and sets, the attributes of types, the parts of
// functions, cells and slots. Of any other object a digest of what it refers to is kept: where that changes, there is no way
// back. What an object holds in C alone (a random generator's state, a decimal context's flags) is not seen here;
// walle.engine_ext.vm.reset resets it.
class Pristine {
 public:
  Pristine() = default;
  ~Pristine();  // holds on to what it kept: its interpreter is given up
  Pristine(const Pristine&) = delete;
  Pristine& operator=(const Pristine&) = delete;

  // Takes the interpreter as it is now, everything that its collector knows and what that leads to.
  void take();

  // Puts back what differs. What was there instead goes to `trash`, a list, as dropping it may run a task's code. Returns how
  // many objects differed, or -1 with a Python error set.
  int restore(PyObject* trash);

  // "" where everything is as it was taken and nothing else is there; otherwise what is not.
  std::string difference();

  // Around the import of a module that is to stay for later tasks: what it changes and brings is taken too. Where the present
  // task has changed what the module was made from, or the module holds something of the task's, `spoilt` says so from then on.
  void before_import();
  void after_import();
  const std::string& spoilt() const { return spoilt_; }

  // Objects that are kept, and the bytes that keeping them takes.
  std::size_t size() const { return entries_.size(); }
  std::size_t bytes() const;

 private:
  enum class Kind : std::uint8_t { fixed, opaque, dict, list, set, function, builtin, type, cell, instance, cache, registry };
  struct Entry {
    PyObject* object;
    Kind kind;
    std::uint32_t count;
    PyObject** contents;  // owned, `count` of them; null pointers stand for empty slots
    std::uint64_t digest;
  };

  static Kind kind_of(PyObject* object);
  static bool has_digest(Kind kind);
  const std::vector<Py_ssize_t>& slots_of(PyTypeObject* type);
  std::uint32_t find(PyObject* object) const;
  std::vector<PyObject*> objects() const;
  bool add(PyObject* object);
  void rehash(std::size_t slots);
  void close_over(std::size_t first);
  void prepare(PyObject* object);
  void pass_over_table(PyObject* cache);
  void read(PyObject* object, Kind kind, std::vector<PyObject*>& contents);
  void keep(Entry& entry);
  bool same(const Entry& entry);
  bool is_tampered(const Entry& entry);
  void put_back(Entry& entry, PyObject* trash);
  void put_back_dict(Entry& entry, PyObject* trash);
  void put_back_function(const Entry& entry, PyObject* trash);
  void put_back_type(const Entry& entry, PyObject* trash);
  void adopt_registry(const Entry& entry, PyObject* trash);
  std::string name_of(const Entry& entry) const;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> table_;  // open addressing; 0 is empty, else an entry's number + 1
  std::unordered_map<PyObject*, PyTypeObject*> type_of_dict_;
  std::unordered_map<PyTypeObject*, std::vector<Py_ssize_t>> slots_;
  PyObject* interned_ = nullptr;    // see objects()
  std::vector<PyObject*> now_;      // scratch
  std::vector<bool> differed_;      // before an import
  std::vector<PyObject*> tenants_;  // sorted; before an import: what the task has made
  std::string spoilt_;
};

}  // namespace walle::vm
