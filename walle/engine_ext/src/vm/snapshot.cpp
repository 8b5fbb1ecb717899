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
  monitoring_.take();
  interned_ = table_of_interned(objects());
  for (PyObject* object : objects())
    if (!PyFrame_Check(object)) add(object);
  record_from(0);
  // Reading an object may create others (the dict of an instance), so that all are recorded again once all exist.
  for (Entry& entry : entries_) record(entry);
}

int Snapshot::restore(PyObject* trash) {
  int differed = monitoring_.clear() ? 1 : 0;
  for (std::size_t number = 0; number < entries_.size(); ++number)  // a digest does not tell all of a cache
    if (entries_[number].kind == Kind::cache && clear_cache(entries_[number].object)) ++differed;
  if (const std::string name = name_of_written(); !name.empty()) set_taint("the dict of " + name + " was written to");
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

void Snapshot::clear_attribute_caches() {
  for (const auto& [dict, type] : type_of_dict_)
    if (is_heap_type(type)) vm::clear_attribute_caches(type);
}

// Returns the name of a static type whose dict was written to since the last time, or "".
std::string Snapshot::name_of_written() {
  PyTypeObject* type = type_writes_.take_written();
  return type != nullptr ? name_of(entries_[find(as_object(type))]) : "";
}

std::string Snapshot::difference() {
  for (const Entry& entry : entries_) {
    if (!is_unchanged(entry)) return name_of(entry) + " is changed and cannot be restored";
    if (entry.kind == Kind::function && has_local_events(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(entry.object))))
      return "the code of " + name_of(entry) + " is monitored";
  }
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

std::size_t Snapshot::bytes() const {
  std::size_t total = entries_.capacity() * sizeof(Entry) + table_.capacity() * sizeof(std::uint32_t) + slots_of_types_.bytes();
  for (const Entry& entry : entries_) total += entry.count * sizeof(PyObject*);
  return total;
}

Snapshot::~Snapshot() {
  for (const Entry& entry : entries_) delete[] entry.contents;
}

}  // namespace walle::vm
