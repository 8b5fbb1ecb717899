// In a VM, whose tasks are strangers: pybind11's types as tasks can reach them, without the ways in which Python code can
// make an object of one that has nothing in it, or have one taken for another.
#pragma once
#include <pybind11/pybind11.h>

namespace walle {

// Closes the module's types, their base and metatype, and the type behind its functions, for good: none can be subclassed or
// changed, no object becomes one of them, and none is made but by calling its type.
void seal_types(const pybind11::module_& module);

}  // namespace walle
