// State of a type that CPython keeps in C beside its dict: slots and flags.
#pragma once
#include <Python.h>

#include <cstdint>
#include <unordered_map>

namespace walle::vm {

// Returns a digest of the type's slots, those of its number, sequence, mapping, async and buffer protocols included, its sizes,
// bases and flags. Without what CPython itself changes while code runs: caches, version tags, lists of subclasses.
//
// An assignment to `C.__new__` sets a slot that neither a deletion nor a second assignment clears.
std::uint64_t digest_of_slots(PyTypeObject* type);

// Clears what CPython keeps of a heap type's attributes for its specialised code, and lets it keep them again. A cache may be
// wrong although nothing differs: `property.__init__(C.name, other)` and back leaves the other function in code that used the
// property.
void clear_attribute_caches(PyTypeObject* type);

// Digests of types at one time. The types must outlive it.
class TypeSlots {
 public:
  // Records the type's present slots, in place of earlier ones.
  void record(PyTypeObject* type) { digests_[type] = digest_of_slots(type); }
  // Returns a type whose slots differ from what is recorded, or null.
  PyTypeObject* find_changed() const;
  std::size_t bytes() const;

 private:
  std::unordered_map<PyTypeObject*, std::uint64_t> digests_;
};

}  // namespace walle::vm
