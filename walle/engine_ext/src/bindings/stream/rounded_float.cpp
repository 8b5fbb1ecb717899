#include "bindings/stream/rounded_float.h"

#include <Python.h>

#include <cmath>
#include <iterator>
#include <new>

namespace walle::columns {

namespace {

constexpr double kPowersOfTen[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
static_assert(std::size(kPowersOfTen) == kMaxRoundedDigits + 1);

}  // namespace

double rounded(double number, std::int32_t digits) {
  if (digits < 0 || !std::isfinite(number)) return number;
  const double scaled = number * kPowersOfTen[digits];
  if (std::fabs(scaled) < 0x1p40) {  // beyond a tie by more than the error of the product, the quotient is the nearest double
    const double whole = std::nearbyint(scaled);
    if (std::fabs(std::fabs(scaled - whole) - 0.5) > 0x1p-10) return whole / kPowersOfTen[digits];
  }
  char* text = PyOS_double_to_string(number, 'f', digits, 0, nullptr);
  const double nearest = text == nullptr ? -1 : PyOS_string_to_double(text, nullptr, nullptr);
  PyMem_Free(text);
  if (nearest == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw std::bad_alloc();
  }
  return nearest;
}

}  // namespace walle::columns
