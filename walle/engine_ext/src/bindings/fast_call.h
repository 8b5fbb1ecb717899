// Arguments of functions that Python calls by its vector call convention: no tuple, no dict, no pybind11 between.
#pragma once
#include <pybind11/pybind11.h>

#include <array>

namespace walle {

// Parameters of a function: the first `required` must be given, and those from `positional` on only by name.
template <std::size_t N>
struct Signature {
  const char* function;
  std::array<const char*, N> names;
  std::size_t required = 0, positional = N;
};

// Returns the arguments by parameter, borrowed; null where one is not given. Throws Python's TypeError for a call that does not
// match the signature.
template <std::size_t N>
std::array<PyObject*, N> parse(const Signature<N>& signature, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  std::array<PyObject*, N> values{};
  const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(static_cast<std::size_t>(count)));
  if (given > signature.positional)
    throw pybind11::type_error(std::string(signature.function) + "() takes at most " + std::to_string(signature.positional) +
                               " positional arguments, " + std::to_string(given) + " were given");
  for (std::size_t i = 0; i < given; ++i) values[i] = args[i];
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* name = PyTuple_GET_ITEM(keywords, k);
    std::size_t at = 0;
    while (at < N && PyUnicode_CompareWithASCIIString(name, signature.names[at]) != 0) ++at;
    if (at == N || values[at] != nullptr) {
      PyErr_Format(PyExc_TypeError, at == N ? "%s() has no argument '%U'" : "%s() got the argument '%U' twice",
                   signature.function, name);
      throw pybind11::error_already_set();
    }
    values[at] = args[given + static_cast<std::size_t>(k)];
  }
  for (std::size_t i = 0; i < signature.required; ++i)
    if (values[i] == nullptr)
      throw pybind11::type_error(std::string(signature.function) + "() needs the argument '" + signature.names[i] + "'");
  return values;
}

inline bool is_given(PyObject* value) { return value != nullptr && value != Py_None; }

inline bool is_true(PyObject* value) {
  const int truth = value == nullptr || value == Py_False ? 0 : PyObject_IsTrue(value);
  if (truth < 0) throw pybind11::error_already_set();
  return truth != 0;
}

}  // namespace walle
