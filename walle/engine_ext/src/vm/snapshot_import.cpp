// Imports of modules that stay for later tasks: what the present task changed is set aside meanwhile.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "vm/snapshot.h"
#include "vm/snapshot_objects.h"

namespace walle::vm {

namespace {

void release(std::vector<PyObject*>& owned) {
  for (PyObject* object : std::exchange(owned, {})) Py_XDECREF(object);
}

std::vector<PyObject*> owned(PyObject* const* contents, std::size_t count) {
  std::vector<PyObject*> copy(contents, contents + count);
  for (PyObject* object : copy) Py_XINCREF(object);
  return copy;
}

// Returns whether the name has the form __name__; true for keys of another type than str.
bool is_special_name(PyObject* name) {
  if (!PyUnicode_CheckExact(name)) return true;
  const Py_ssize_t length = PyUnicode_GET_LENGTH(name);
  const auto is_underscore = [&](Py_ssize_t i) { return PyUnicode_READ_CHAR(name, i) == '_'; };
  return length > 4 && is_underscore(0) && is_underscore(1) && is_underscore(length - 1) && is_underscore(length - 2);
}

// What a dict, list or set held at one time: values by key, and null by item.
class ItemTable {
 public:
  ItemTable(const std::vector<PyObject*>& contents, std::size_t step) {
    for (std::size_t i = 0; i < contents.size(); i += step) values_[contents[i]] = step == 2 ? contents[i + 1] : nullptr;
  }

  bool has(PyObject* key, PyObject* value) const {
    const PyObject* const* found = find(key);
    return found != nullptr && *found == value;
  }

  const PyObject* const* find(PyObject* key) const {
    const auto found = values_.find(key);
    return found != values_.end() ? &found->second : nullptr;
  }

 private:
  std::unordered_map<PyObject*, const PyObject*> values_;
};

// Returns what the task put there, changed as the import changed `recorded` into `now`.
std::vector<PyObject*> merged_items(const std::vector<PyObject*>& of_task, const std::vector<PyObject*>& recorded,
                                    const std::vector<PyObject*>& now, std::size_t step) {
  const ItemTable task(of_task, step), before(recorded, step), after(now, step);
  const auto is_by_import = [&](PyObject* key) {
    const auto *old_value = before.find(key), *new_value = after.find(key);
    return old_value == nullptr || new_value == nullptr ? old_value != new_value : *old_value != *new_value;
  };
  std::vector<PyObject*> result;
  const auto add = [&](const std::vector<PyObject*>& items, std::size_t i) {
    for (std::size_t part = i; part < i + step; ++part) result.push_back(items[part]);
  };
  for (std::size_t i = 0; i < of_task.size(); i += step)
    if (!is_by_import(of_task[i])) add(of_task, i);
  for (std::size_t i = 0; i < now.size(); i += step)
    if (is_by_import(now[i])) add(now, i);
  return result;
}

}  // namespace

// Returns whether the object is changed in a way that cannot be set aside. Reads only: no code of the task may run between the
// reading and the import.
bool Snapshot::is_tampered(const Entry& entry) {
  switch (entry.kind) {
    case Kind::opaque:
    case Kind::type:
    case Kind::builtin:
    case Kind::module: return !is_unchanged(entry);
    case Kind::function: {
      const auto parts = parts_of(entry.object);
      return *parts[0] != entry.contents[0] || *parts[1] != entry.contents[1] || *parts[2] != entry.contents[2];
    }
    case Kind::dict:
      if (const auto owner = type_of_dict_.find(entry.object); owner != type_of_dict_.end() && !is_unchanged(entry))
        return !is_heap_type(owner->second) || has_other_special_names(entry);
      [[fallthrough]];
    case Kind::list:
    case Kind::set:
    case Kind::instance: return !is_known(as_object(Py_TYPE(entry.object)));
    case Kind::fixed:
    case Kind::cell:
    case Kind::cache:
    case Kind::registry:
    case Kind::lock: return false;
  }
  return true;
}

// Returns whether a type's dict has another value by a name on which slots in C, or the creation of subclasses, depend.
bool Snapshot::has_other_special_names(const Entry& entry) {
  const ItemTable recorded({entry.contents, entry.contents + entry.count}, 2);
  read(entry.object, entry.kind, contents_);
  const ItemTable now(contents_, 2);
  const auto differs = [](const std::vector<PyObject*>& contents, const ItemTable& other) {
    for (std::size_t k = 0; k < contents.size(); k += 2)
      if (is_special_name(contents[k]) && !other.has(contents[k], contents[k + 1])) return true;
    return false;
  };
  return differs(contents_, recorded) || differs({entry.contents, entry.contents + entry.count}, now);
}

// Returns why an import now would not give what it gives without the task, or "".
std::string Snapshot::find_tampered() {
  if (monitoring_.clear()) return "its execution was traced";
  if (const std::string name = name_of_written(); !name.empty()) return name + " was changed";
  for (const Entry& entry : entries_)
    if (is_tampered(entry)) return name_of(entry) + " was changed";
  if (PyTypeObject* type = slots_of_types_.find_changed())
    return "the slots of " + name_of(entries_[find(as_object(type))]) + " were changed";
  return "";
}

// Records the sets that abstract classes created since, as empty, so that they are restored as any set is.
void Snapshot::adopt_registries() {
  std::vector<PyObject*> sets;
  const std::size_t known = entries_.size();
  for (std::size_t number = 0; number < known; ++number) {
    if (entries_[number].kind != Kind::registry) continue;
    referents_of(entries_[number].object, sets);
    for (PyObject* set : sets)
      if (PySet_Check(set)) add(set);  // contents are not added
  }
}

void Snapshot::set_aside(std::uint32_t number) {
  Entry& entry = entries_[number];
  set_aside_.push_back({number, contents_of(entry), owned(entry.contents, entry.count)});
  assign(entry, set_aside_.back().recorded);
}

// Gives the object what the task had given it, with what the import has changed in it meanwhile.
void Snapshot::bring_back(SetAside& one) {
  Entry& entry = entries_[one.number];
  std::vector<PyObject*> now = contents_of(entry);
  std::vector<PyObject*> merged;
  if (entry.kind == Kind::dict || entry.kind == Kind::list || entry.kind == Kind::set) {
    merged = merged_items(one.of_task, one.recorded, now, entry.kind == Kind::dict ? 2 : 1);
  } else {
    for (std::size_t i = 0; i < now.size(); ++i) merged.push_back(now[i] == one.recorded[i] ? one.of_task[i] : now[i]);
  }
  assign(entry, merged);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    set_taint("what the task changed in " + name_of(entry) + " was lost by the load of a module");
  }
  for (auto* contents : {&one.of_task, &one.recorded, &now}) release(*contents);
}

void Snapshot::before_import() {
  if (!taint_.empty()) return;  // the interpreter is discarded when the task ends
  if (const std::string why = find_tampered(); !why.empty()) return set_taint("a module was loaded while " + why);
  adopt_registries();
  for (std::uint32_t number = 0; number < entries_.size(); ++number)
    if (entries_[number].kind != Kind::cache && is_changed(entries_[number])) set_aside(number);
  for (const Entry& entry : entries_)
    if (entry.kind == Kind::cache) clear_lru_cache(entry.object);
  PyErr_Clear();
  // Again, because setting aside may have failed, or run code of the task (a descriptor of a metaclass).
  std::string why = find_tampered();
  for (std::size_t number = 0; number < entries_.size() && why.empty(); ++number)
    if (is_changed(entries_[number])) why = name_of(entries_[number]) + " was changed";
  if (!why.empty()) set_taint("a module was loaded while " + why);
  clear_attribute_caches();
  hold_task_objects();
  task_code_.watch();
}

// Holds the task's objects, so that none of their addresses is used again, and finds its code.
void Snapshot::hold_task_objects() {
  const auto is_of_task = [&](PyObject* object) { return find(object) == kNone && !is_known(referent_of(object)); };
  for (PyObject* object : objects())
    if (is_of_task(object)) task_objects_.push_back(Py_NewRef(object));
  std::sort(task_objects_.begin(), task_objects_.end());
  // During a collection the collector does not show the objects that it may delete. A finalizer can use them.
  std::vector<PyObject*> todo = task_objects_, found;
  std::unordered_set<PyObject*> hidden;
  while (!todo.empty()) {
    PyObject* object = todo.back();
    todo.pop_back();
    task_code_.add(object);
    referents_of(object, found);
    if (PyObject* referent = referent_of(object)) found.push_back(referent);
    for (PyObject* one : found)
      if (PyObject_IS_GC(one) && !std::binary_search(task_objects_.begin(), task_objects_.end(), one) && is_of_task(one) &&
          hidden.insert(one).second)
        todo.push_back(one);
  }
}

void Snapshot::after_import() {
  if (taint_.empty()) record_import();
  if (task_code_.end()) set_taint("a module was loaded while code of the task ran");
  for (SetAside& one : std::exchange(set_aside_, {})) bring_back(one);
  release(task_objects_);
}

// Records what the import changed and created.
void Snapshot::record_import() {
  const std::size_t known = entries_.size();
  std::vector<PyObject*> found;
  for (const auto& [dict, type] : type_of_dict_)
    if (is_abstract(dict)) clear_abstract_caches(as_object(type));
  for (std::size_t number = 0; number < known; ++number) {
    Entry& entry = entries_[number];
    if (!is_changed(entry)) continue;
    add_referents(entry.object, found);
    record(entries_[number]);
  }
  // All other new objects are the module's too: the collector does not see the dicts and subclasses of static types.
  for (PyObject* object : objects())
    if (!PyFrame_Check(object) && !std::binary_search(task_objects_.begin(), task_objects_.end(), object)) add(object);
  record_from(known);
  for (std::size_t number = known; number < entries_.size(); ++number) {
    record(entries_[number]);
    if (std::binary_search(task_objects_.begin(), task_objects_.end(), entries_[number].object))
      set_taint("a module was loaded that refers to the task's " + name_of(entries_[number]));
  }
  for (const Entry& entry : entries_)  // an import may register classes with abstract ones
    if (PyType_Check(entry.object)) slots_of_types_.record(reinterpret_cast<PyTypeObject*>(entry.object));
  name_of_written();  // static types are found by their modules
}

}  // namespace walle::vm
