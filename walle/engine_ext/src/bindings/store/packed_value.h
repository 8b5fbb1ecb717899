// Encoding of plain data as walle.plain has it (MessagePack), for the values that need no decision in Python.
#pragma once
#include <Python.h>

namespace walle {

// Returns new bytes that equal walle.plain.encode(value). A null pointer without a Python error: walle.plain must decide (see
// packed_size.h).
PyObject* packed_value(PyObject* value);

}  // namespace walle
