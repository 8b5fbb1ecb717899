// Python objects as the snapshot reads them.
#pragma once
#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace walle::vm {

inline bool is_heap_type(PyTypeObject* type) { return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0; }

inline PyObject* as_object(PyTypeObject* type) { return reinterpret_cast<PyObject*>(type); }

// Sets `found` to the objects that the collector finds from this one, borrowed.
void referents_of(PyObject* object, std::vector<PyObject*>& found);
// Returns a digest of the object's class and of the same; in the order of the references, unless `in_any_order` is set. Without a
// type's slots in C.
std::uint64_t digest_of(PyObject* object, bool in_any_order = false);

// The parts of a function that Python code can change, in the order in which they are recorded.
std::vector<PyObject**> parts_of(PyObject* function);
inline constexpr std::size_t kFirstPassivePart = 3;  // a call reads those before it: the code and the defaults
// What Python code can change of a heap type besides its dict and what the collector sees.
std::array<PyObject**, 2> names_of(PyObject* type);

// Returns whether the object is a lock of `_thread`, whose state only its methods tell.
bool is_lock(PyObject* object);
// Returns 1 where the lock is held, 0 where it is not, -1 where it does not say.
int is_locked(PyObject* lock);

void clear_lru_cache(PyObject* cache);

// Returns what a plain weak reference without a callback refers to, borrowed, and null for any other object. CPython has one such
// reference for each object, which all code shares.
PyObject* referent_of(PyObject* object);

bool is_abstract(PyObject* dict_of_type);
// Clears an abstract class's caches of isinstance(), which are recorded as empty: entries of an earlier time may be wrong now.
void clear_abstract_caches(PyObject* type);

}  // namespace walle::vm
