// Python objects as the snapshot reads them.
#pragma once
#include <Python.h>

#include <array>
#include <cstdint>
#include <vector>

namespace walle::vm {

inline bool is_heap_type(PyTypeObject* type) { return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0; }

// Sets `found` to the objects that the collector finds from this one, borrowed.
void referents_of(PyObject* object, std::vector<PyObject*>& found);
// Returns a digest of the same.
std::uint64_t digest_of(PyObject* object);

// The parts of a function that Python code can change, in the order in which they are recorded.
std::vector<PyObject**> parts_of(PyObject* function);
// What Python code can change of a heap type besides its dict and what the collector sees.
std::array<PyObject**, 2> names_of(PyObject* type);

void clear_lru_cache(PyObject* cache);

bool is_abstract(PyObject* dict_of_type);
// Clears an abstract class's caches of isinstance(), which are recorded as empty: entries of an earlier time may be wrong now.
void clear_abstract_caches(PyObject* type);

}  // namespace walle::vm
