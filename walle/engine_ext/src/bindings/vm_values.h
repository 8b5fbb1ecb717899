// Values that cross between a VM and its caller, for the bindings of VMs.
#pragma once
#include <pybind11/pybind11.h>

#include <chrono>
#include <string_view>

#include "vm/value.h"

namespace walle {

// Conversion of arrays: an ndarray crosses as its Tensor, another object by the buffer protocol.
extern const vm::ArrayPort kArrayPort;

// Throws Python's TypeError where the object is not plain data; `root` is what the error calls it.
vm::Value read_value(pybind11::handle object, const char* root);
pybind11::object write_value(const vm::Value& value);

// Returns the text of bytes that may not be UTF-8.
pybind11::str decode_text(std::string_view utf8);

std::chrono::nanoseconds nanoseconds(double seconds);

// Runs a function, and throws Python's TypeError where it throws NotPlain.
template <class Function>
void translate_not_plain(Function function) {
  try {
    function();
  } catch (const vm::NotPlain& error) {
    throw pybind11::type_error(error.what());
  }
}

// Binds the functions that code in a VM calls.
void bind_in_vm(pybind11::module_& module);

}  // namespace walle
