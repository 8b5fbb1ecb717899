// Python types of event columns (§5.1), for tasks in VMs too: EventView, EventGroups, and the functions that make views.
#pragma once
#include <Python.h>

namespace walle {

// Adds them to the module of any interpreter; returns 0, or -1 with a Python error.
int add_event_columns(PyObject* module);

}  // namespace walle
