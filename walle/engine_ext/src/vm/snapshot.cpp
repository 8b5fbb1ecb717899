#include "vm/snapshot.h"

#include <algorithm>
#include <utility>

#include "vm/snapshot_objects.h"

namespace walle::vm {

namespace {

// Returns the interpreter's table of interned strings, whose references to them do not count; null where the collector does not
// know it (before Python 3.14).
PyObject* table_of_interned(const std::vector<PyObject*>& objects) {
  PyObject* probe = PyUnicode_InternFromString("walle: a string that no other code interns");
  PyObject* table = nullptr;
  for (PyObject* object : objects)
    if (PyDict_CheckExact(object) && PyDict_GetItemWithError(object, probe) == probe) table = object;
  PyErr_Clear();
  Py_XDECREF(probe);
  return table;
}

std::size_t hash_of(PyObject* object) { return reinterpret_cast<std::uintptr_t>(object) / 16 * 0x9e3779b97f4a7c15u >> 20; }

}  // namespace

std::uint32_t Snapshot::find(PyObject* object) const {
  if (table_.empty()) return kNone;
  const std::size_t mask = table_.size() - 1;
  for (std::size_t slot = hash_of(object) & mask; table_[slot] != 0; slot = (slot + 1) & mask)
    if (entries_[table_[slot] - 1].object == object) return table_[slot] - 1;
  return kNone;
}

void Snapshot::rehash(std::size_t slots) {
  table_.assign(slots, 0);
  for (std::uint32_t number = 0; number < entries_.size(); ++number) {
    std::size_t slot = hash_of(entries_[number].object) & (slots - 1);
    while (table_[slot] != 0) slot = (slot + 1) & (slots - 1);
    table_[slot] = number + 1;
  }
}

bool Snapshot::add(PyObject* object) {
  if (find(object) != kNone) return false;
  entries_.push_back({Py_NewRef(object), kind_of(object), 0, nullptr, 0});
  if (entries_.size() * 2 > table_.size()) {
    rehash(std::max<std::size_t>(1024, table_.size() * 2));
  } else {
    const std::size_t mask = table_.size() - 1;
    std::size_t slot = hash_of(object) & mask;
    while (table_[slot] != 0) slot = (slot + 1) & mask;
    table_[slot] = static_cast<std::uint32_t>(entries_.size());
  }
  return true;
}

void Snapshot::add_referents(PyObject* object, std::vector<PyObject*>& found) {
  referents_of(object, found);
  // The collector knows no static types, and objects do not refer to them.
  found.push_back(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  if (PyType_Check(object)) {
    PyObject* order = reinterpret_cast<PyTypeObject*>(object)->tp_mro;
    for (Py_ssize_t i = 0; order != nullptr && i < PyTuple_GET_SIZE(order); ++i) found.push_back(PyTuple_GET_ITEM(order, i));
  }
  for (PyObject* one : found)
    if ((PyType_Check(one) || PyObject_IS_GC(one)) && !PyFrame_Check(one)) add(one);
}

// Adds all objects that the entries from `first` on refer to, and records the contents of all these.
void Snapshot::record_from(std::size_t first) {
  std::vector<PyObject*> found;
  for (std::size_t number = first; number < entries_.size(); ++number) {
    PyObject* object = entries_[number].object;
    prepare(object);
    add_referents(object, found);
  }
  for (std::size_t number = first; number < entries_.size(); ++number) record(entries_[number]);
}

// Returns every object that the collector knows, except for the table of interned strings.
std::vector<PyObject*> Snapshot::objects() const {
  std::pair<std::vector<PyObject*>, PyObject*> found = {{}, interned_};
  PyUnstable_GC_VisitObjects(
      [](PyObject* object, void* given) {
        auto& [all, interned] = *static_cast<decltype(found)*>(given);
        if (object != interned) all.push_back(object);
        return 1;
      },
      &found);
  return found.first;
}

void Snapshot::take() {
  interned_ = table_of_interned(objects());
  for (PyObject* object : objects())
    if (!PyFrame_Check(object)) add(object);
  record_from(0);
  // Reading an object may create others (the dict of an instance), so that all are recorded again once all exist.
  for (Entry& entry : entries_) record(entry);
}

int Snapshot::restore(PyObject* trash) {
  int differed = 0;
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    if (is_unchanged(entries_[number])) continue;
    ++differed;
    restore_entry(entries_[number], trash);
    if (PyErr_Occurred() != nullptr) return -1;
  }
  return differed;
}

std::string Snapshot::name_of(const Entry& entry) const {
  PyObject* object = entry.object;
  // Without looking up attributes, which may run a task's code.
  std::string text = std::string("a ") + Py_TYPE(object)->tp_name;
  PyObject* name = nullptr;
  if (const auto type = type_of_dict_.find(object); type != type_of_dict_.end()) {
    name = PyType_GetFullyQualifiedName(type->second);
  } else if (entry.kind == Kind::dict) {
    if (PyDict_GetItemString(object, "__spec__") != nullptr) name = Py_XNewRef(PyDict_GetItemString(object, "__name__"));
  } else if (PyType_Check(object)) {
    name = PyType_GetFullyQualifiedName(reinterpret_cast<PyTypeObject*>(object));
  } else if (entry.kind == Kind::module) {
    name = PyModule_GetNameObject(object);
  } else if (PyFunction_Check(object)) {
    name = Py_XNewRef(reinterpret_cast<PyFunctionObject*>(object)->func_qualname);
  }
  if (const char* utf8 = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr) text = utf8;
  Py_XDECREF(name);
  PyErr_Clear();
  return text;
}

std::string Snapshot::difference() {
  for (const Entry& entry : entries_)
    if (!is_unchanged(entry)) return name_of(entry) + " is changed and cannot be restored";
  if (PyTypeObject* type = slots_of_types_.find_changed())
    return name_of(entries_[find(reinterpret_cast<PyObject*>(type))]) + " has other slots in C, which cannot be restored";
  std::size_t extra = 0;
  std::string first;
  for (PyObject* object : objects()) {
    if (find(object) != kNone) continue;
    if (++extra == 1) first = Py_TYPE(object)->tp_name;
  }
  if (extra == 0) return "";
  return std::to_string(extra) + " objects were left behind, the first of type " + first;
}

// Returns whether a changed object would change the outcome of an import: a type, a function, or a name of a module that had a
// value before. What modules keep while they run (caches, tables, names that are set at first use) does not count.
bool Snapshot::is_tampered(const Entry& entry) {
  if (entry.kind == Kind::function) {
    const auto parts = parts_of(entry.object);
    return *parts[0] != entry.contents[0] || *parts[1] != entry.contents[1] || *parts[2] != entry.contents[2];
  }
  if (entry.kind == Kind::opaque || entry.kind == Kind::type) return true;
  if (entry.kind == Kind::module) return reinterpret_cast<PyObject*>(Py_TYPE(entry.object)) != entry.contents[0];
  if (entry.kind != Kind::dict) return false;
  const bool is_type_dict = type_of_dict_.contains(entry.object);
  const bool is_module_dict = PyDict_GetItemString(entry.object, "__spec__") != nullptr;
  if (!is_type_dict && !is_module_dict) return false;
  for (std::uint32_t i = 0; i < entry.count; i += 2) {
    PyObject* value = PyDict_GetItemWithError(entry.object, entry.contents[i]);
    if (value != entry.contents[i + 1] && entry.contents[i + 1] != Py_None) return true;
  }
  PyErr_Clear();
  return false;
}

void Snapshot::before_import() {
  changed_.assign(entries_.size(), false);
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    const Entry& entry = entries_[number];
    if (is_unchanged(entry)) continue;
    changed_[number] = true;
    if (taint_.empty() && is_tampered(entry)) taint_ = "a module was loaded while " + name_of(entry) + " was changed";
  }
  if (PyTypeObject* type = slots_of_types_.find_changed(); type != nullptr && taint_.empty())
    taint_ =
        "a module was loaded while the slots of " + name_of(entries_[find(reinterpret_cast<PyObject*>(type))]) + " were changed";
  task_objects_.clear();
  for (PyObject* object : objects())
    if (find(object) == kNone) task_objects_.push_back(Py_NewRef(object));  // held, so that none of their addresses is used again
  std::sort(task_objects_.begin(), task_objects_.end());
}

void Snapshot::after_import() {
  const std::size_t known = entries_.size();
  std::vector<PyObject*> found;
  for (const auto& [dict, type] : type_of_dict_)
    if (is_abstract(dict)) clear_abstract_caches(reinterpret_cast<PyObject*>(type));
  for (std::size_t number = 0; number < changed_.size(); ++number) {
    Entry& entry = entries_[number];
    if (changed_[number] || is_unchanged(entry)) continue;
    add_referents(entry.object, found);
    record(entries_[number]);
  }
  // All other new objects are the module's too: the collector does not see the dicts and subclasses of static types.
  for (PyObject* object : objects())
    if (!PyFrame_Check(object) && !std::binary_search(task_objects_.begin(), task_objects_.end(), object)) add(object);
  record_from(known);
  for (std::size_t number = known; number < entries_.size(); ++number) {
    record(entries_[number]);
    if (taint_.empty() && std::binary_search(task_objects_.begin(), task_objects_.end(), entries_[number].object))
      taint_ = "a module was loaded that refers to the task's " + name_of(entries_[number]);
  }
  for (const Entry& entry : entries_)  // an import may register classes with abstract ones
    if (PyType_Check(entry.object)) slots_of_types_.record(reinterpret_cast<PyTypeObject*>(entry.object));
  for (PyObject* object : std::exchange(task_objects_, {})) Py_DECREF(object);
}

std::size_t Snapshot::bytes() const {
  std::size_t total = entries_.capacity() * sizeof(Entry) + table_.capacity() * sizeof(std::uint32_t) + slots_of_types_.bytes();
  for (const Entry& entry : entries_) total += entry.count * sizeof(PyObject*);
  return total;
}

Snapshot::~Snapshot() {
  for (const Entry& entry : entries_) delete[] entry.contents;
}

}  // namespace walle::vm
