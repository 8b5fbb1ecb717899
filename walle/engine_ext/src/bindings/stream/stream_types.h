// Python types of stream processing (§5.1): TriggerTrie, EventStream, PageVisit; and packed_size.
#pragma once
#include <Python.h>

namespace walle {

// Adds them to the module; returns 0, or -1 with a Python error.
int add_stream_types(PyObject* module);

}  // namespace walle
