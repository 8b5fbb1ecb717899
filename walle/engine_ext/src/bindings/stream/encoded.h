// Encoded: plain data as its bytes, which a task passes on without objects for its parts.
#pragma once
#include <Python.h>

#include <string_view>

namespace walle {

// Immutable, of bytes that are known to be plain data: it is made by plans and by the crossing between interpreters alone.
struct Encoded {
  PyObject* bytes;  // exact bytes, owned
  int depth;        // levels of containers in containers, or more
};

extern PyType_Spec encoded_spec;

// Returns the object's state; a null pointer, and no Python error, for another object.
const Encoded* as_encoded(PyObject* object) noexcept;
// All return a new reference, or a null pointer with a Python error.
PyObject* new_encoded(PyTypeObject* type, std::string_view bytes, int depth);
PyObject* new_encoded_here(std::string_view bytes, int depth);  // made as the present interpreter's type
PyObject* encoded_type_of(PyObject* module);  // the module's attributes can be set by task code: refused if it is another type

}  // namespace walle
