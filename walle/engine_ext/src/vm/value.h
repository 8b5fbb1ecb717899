// Plain data and arrays as a C++ value tree: what crosses between interpreters. Each side converts under its own GIL, so that
// no Python object is ever seen by two interpreters. An array crosses as its Tensor, whose storage both sides share (§4.3).
#pragma once
#include <Python.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"

namespace walle::vm {

struct Value;
using Items = std::vector<Value>;

struct BigInt {
  std::string hex;  // digits of Python's base 16; for integers from 2^63 to 2^64 - 1
};
struct Text {
  std::string utf8;
};
struct Bytes {
  std::string data;
};
struct Encoded {
  std::string data;  // plain data in MessagePack
  int depth = 0;     // levels of containers in containers, or more
};
struct List {
  Items items;
};
struct Tuple {
  Items items;
};
struct Dict {
  Items keys, values;
};

struct Value {
  std::variant<std::monostate, bool, std::int64_t, BigInt, double, Text, Bytes, Encoded, List, Tuple, Dict, Tensor> data;
};

inline Value text_value(std::string utf8) { return Value{Text{std::move(utf8)}}; }

// A value is not plain data. The message names its place in the value, as in `result.prices[3]`, and what was refused.
class NotPlain : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value exceeds its size limit. The message says where.
class TooLarge : public NotPlain {
 public:
  using NotPlain::NotPlain;
};

// What a value's size counts besides texts, bytes and elements: for each item, and for each axis of an array. Both sides of a
// socket count alike, so that a value within its limit is within its receiver's.
inline constexpr std::int64_t kItemBytes = 8;
inline constexpr std::int64_t kAxisBytes = 8;

// Limits of a value's depth and size; `bytes` counts arrays by their descriptions, `all_bytes` with axes and elements.
struct Limits {
  int depth = 100;
  std::int64_t nodes = 4'000'000;
  std::int64_t bytes = std::int64_t{256} << 20;
  std::int64_t all_bytes = 0;  // 0: no limit
};

// Conversion of an interpreter's arrays to and from Tensors, and of its encoded values. The bindings supply it, so that vm/ does
// not depend on pybind11.
struct ArrayPort {
  // Returns true and sets `tensor` where the object is an array that may leave this interpreter; false where it is not an array.
  // Throws walle::Error where it is an array that cannot be sent. With false, a Python error may be set.
  bool (*to_tensor)(PyObject* object, Tensor& tensor);
  // Returns a new reference, or null with a Python error set.
  PyObject* (*to_object)(const Tensor& tensor);
  // Returns true and sets `encoded` where the object is an encoded value; sets no Python error.
  bool (*to_encoded)(PyObject* object, Encoded& encoded);
  // Returns a new reference, or null with a Python error set.
  PyObject* (*encoded_to_object)(const Encoded& encoded);
  // Returns the encoded value that another process sent as bytes, with its depth. Throws NotPlain where they are not plain data.
  Encoded (*check_encoded)(std::string_view bytes);
};

// Converts under the GIL of the object's interpreter, by the rules of walle.base.plain. `root` is what an error calls the value,
// such as "result". Throws NotPlain. Instances of subclasses of the plain types arrive as the plain type, arrays without axes
// (the scalars of array libraries) as numbers.
Value from_python(PyObject* object, const ArrayPort& port, const std::string& root, const Limits& limits = {});

// Converts under the GIL of the interpreter that shall own the object. Returns a new reference, or null with a Python error set:
// also where the value comes from another process and from_python would not have made it.
PyObject* to_python(const Value& value, const ArrayPort& port);

// Returns type and message of the Python error that is set, and clears it.
std::string take_error_text();

}  // namespace walle::vm
