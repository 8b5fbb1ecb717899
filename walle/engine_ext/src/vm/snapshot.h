// Snapshot of an interpreter before its first task, and the restoring of it. Every object that exists then is kept with its
// contents, so that what a task changed in it is found and restored, and what the task left behind is found too (§4.3).
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "vm/monitoring.h"
#include "vm/task_code.h"
#include "vm/type_slots.h"
#include "vm/type_writes.h"

namespace walle::vm {

// All methods run under the GIL of the one interpreter that the snapshot belongs to.
//
// What Python code can change is recorded by kind: the items of dicts, lists and sets, the attributes of types, the parts of
// functions, cells and slots. Of any other object a digest of its references is recorded; a change of that cannot be restored.
// Of a type, a static one included, the slots in C are recorded (vm/type_slots.h); of any object whose class can be assigned to,
// the class. A lock is recorded as held or free. Other state that an object holds in C alone (a random generator's state, a
// decimal context's flags) is not seen here; walle.engine_ext.vm.reset resets it.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();  // keeps its references: its interpreter is discarded
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Records the interpreter's present state: all objects that its collector knows and all that these refer to.
  void take();

  // Ends what would run code of the task within other code.
  void clear_hooks() { monitoring_.clear(); }

  // Restores what differs and ends hooks. What was there instead goes to `trash`, a list, because dropping it may run a task's
  // code. Returns how many objects differed, caches and hooks included, or -1 with a Python error set. Where nothing differed, it
  // ran no code of a task.
  int restore(PyObject* trash);

  // Clears CPython's caches of the attributes of types, in which a task may have left others.
  void clear_attribute_caches();

  // Returns "" where every object is unchanged and no further one exists, otherwise what differs.
  std::string difference();

  // Around the import of a module that stays for later tasks. Between the two the library is as it was recorded, whatever the
  // present task has changed in it: before_import() sets that aside and after_import() records what the module changed and
  // created and then brings the task's changes back. Where something cannot be set aside, a hook of the task would run in the
  // import, or the module refers to an object of the task, taint() says so from then on.
  void before_import();
  void after_import();
  const std::string& taint() const { return taint_; }
  // Has taint() say this from now on, unless it says something.
  void set_taint(const std::string& why) {
    if (taint_.empty()) taint_ = why;
  }

  // Objects that are recorded, and the bytes that the record takes.
  std::size_t size() const { return entries_.size(); }
  std::size_t bytes() const;

 private:
  enum class Kind : std::uint8_t {
    fixed,
    opaque,
    dict,
    list,
    set,
    function,
    builtin,
    type,
    cell,
    instance,
    cache,
    registry,
    module,
    lock
  };
  struct Entry {
    PyObject* object;
    Kind kind;
    std::uint32_t count;
    PyObject** contents;  // owned, `count` of them; null pointers stand for empty slots
    std::uint64_t digest;
  };

  // Contents that a task gave to an entry's object, set aside for the time of an import.
  struct SetAside {
    std::uint32_t number;
    std::vector<PyObject*> of_task;   // owned; null pointers stand for empty slots
    std::vector<PyObject*> recorded;  // owned; as before the import
  };

  static constexpr std::uint32_t kNone = 0xffffffffu;  // no entry

  // snapshot.cpp
  std::uint32_t find(PyObject* object) const;
  bool is_known(PyObject* object) const { return object != nullptr && find(object) != kNone; }
  std::vector<PyObject*> objects() const;
  bool add(PyObject* object);
  void add_referents(PyObject* object, std::vector<PyObject*>& scratch);
  void rehash(std::size_t slots);
  void record_from(std::size_t first);
  std::string name_of(const Entry& entry) const;
  std::string name_of_written();

  // snapshot_contents.cpp
  static Kind kind_of(PyObject* object);
  static bool has_digest(PyObject* object, Kind kind);
  static bool is_digest_unchanged(const Entry& entry);
  const std::vector<Py_ssize_t>& slots_of(PyTypeObject* type);
  void prepare(PyObject* object);
  void exclude_table(PyObject* cache);
  bool clear_cache(PyObject* cache);
  void read(PyObject* object, Kind kind, std::vector<PyObject*>& contents);
  void record(Entry& entry);
  std::vector<PyObject*> contents_of(const Entry& entry);
  bool is_unchanged(const Entry& entry);

  // snapshot_import.cpp
  // A lock may be held meanwhile.
  bool is_changed(const Entry& entry) { return entry.kind != Kind::lock && !is_unchanged(entry); }
  bool is_tampered(const Entry& entry);
  bool has_other_special_names(const Entry& entry);
  std::string find_tampered();
  void adopt_registries();
  void set_aside(std::uint32_t number);
  void hold_task_objects();
  void record_import();
  void bring_back(SetAside& one);

  // snapshot_restore.cpp
  void restore_entry(Entry& entry, PyObject* trash);
  void restore_function(const Entry& entry, PyObject* trash);
  void restore_type(const Entry& entry, PyObject* trash);
  void restore_registry(const Entry& entry, PyObject* trash);
  void assign(Entry& entry, const std::vector<PyObject*>& contents);
  void assign_type_dict(Entry& entry, PyTypeObject* owner, const std::vector<PyObject*>& contents);

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> table_;  // open addressing; 0 is empty, else an entry's index + 1
  std::unordered_map<PyObject*, PyTypeObject*> type_of_dict_;
  std::unordered_map<PyTypeObject*, std::vector<Py_ssize_t>> slots_;
  TypeSlots slots_of_types_;             // verified, not restored
  PyObject* interned_ = nullptr;         // see objects()
  std::vector<PyObject*> contents_;      // scratch
  std::vector<SetAside> set_aside_;      // objects set aside while an import runs
  std::vector<PyObject*> task_objects_;  // sorted, while an import runs
  TaskCode task_code_;                   // kept while an import runs
  Monitoring monitoring_;
  TypeWrites type_writes_;
  std::string taint_;
};

}  // namespace walle::vm
