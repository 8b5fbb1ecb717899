// Python floats that are rounded to decimal digits, as `round` does it.
#pragma once
#include <Python.h>

#include <cstdint>

namespace walle::columns {

inline constexpr std::int64_t kMaxRoundedDigits = 15;

// Returns round(number, digits); the float itself where `digits` is negative.
PyObject* rounded(double number, std::int32_t digits);
// Rounds a float, and returns any other object, or a null pointer, unchanged. Takes the reference.
PyObject* rounded(PyObject* object, std::int32_t digits);

}  // namespace walle::columns
