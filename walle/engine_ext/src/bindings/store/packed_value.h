// Encoding of plain data as walle.base.plain has it (MessagePack), for the values that need no decision in Python.
#pragma once
#include <Python.h>

#include <cstdint>

namespace walle {

// Returns new bytes that equal walle.base.plain.encode(value). A null pointer without a Python error: walle.base.plain must
// decide (see packed_size.h).
PyObject* packed_value(PyObject* value);
// Writes the same into memory for `size` bytes, as packed_size has measured it; returns 0, or -1 with a Python error.
int pack_value(PyObject* value, char* to, std::int64_t size);
// Writes the head of the encoding of `size` bytes: at most 5 bytes, which the bytes follow.
void pack_bytes_head(std::uint64_t size, char* to);

}  // namespace walle
