// Conversion between Python objects and plain data in MessagePack, as walle.base.plain does it, without arrays.
#pragma once
#include <Python.h>

#include <string_view>

#include "stream/packed.h"

namespace walle {

// Returns a new object of the value that the reader is at; null with a ValueError where the bytes are damaged, nested too deep,
// or hold an array.
PyObject* object_of(stream::PackedReader& reader, const std::uint8_t* data, int depth = stream::kMaxDepth);
// As above, of a value that was read: a container's items are read again from its place.
PyObject* object_of(const stream::Value& value, const std::uint8_t* data, std::size_t size);

// Appends the encoding of the object. Returns false for an object that walle.base.plain must decide on (an array, a subclass,
// deep nesting, or no plain data), after which `out` is unusable. With `lenient`, an extension without bytes stands in place of
// each such value, and the result is true.
bool append_packed(PyObject* object, stream::Vector<std::uint8_t>& out, bool lenient);

}  // namespace walle
