// Size of plain data in the encoding of walle.plain (MessagePack), without encoding it.
#pragma once
#include <Python.h>

#include <cstdint>

namespace walle {

// Returns -1 for a value that walle.plain must decide on: an array, an int of more than 64 bits, a subclass, deep nesting, or no
// plain data. Sets no Python error.
std::int64_t packed_size(PyObject* value, int depth = 0);

}  // namespace walle
