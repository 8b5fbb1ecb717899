// Size of plain data in the encoding of walle.base.plain (MessagePack), without encoding it.
#pragma once
#include <Python.h>

#include <cstdint>

namespace walle {

// Returns -1 for a value that walle.base.plain must decide on: an array, a subclass, deep nesting, or no
// plain data. Sets no Python error.
std::int64_t packed_size(PyObject* value);

}  // namespace walle
