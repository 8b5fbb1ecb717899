// Protection of pybind11's types in a VM, whose tasks are not trusted: Python code cannot create an object of such a type without
// its C++ object, or pass off another object as one.
#pragma once
#include <pybind11/pybind11.h>

namespace walle {

// Makes the module's types, their base and metatype, and the type behind its functions immutable and final: none can be
// subclassed or changed, no object's class can be set to one, and objects are created only by calling the type.
void protect_types(const pybind11::module_& module);

}  // namespace walle
