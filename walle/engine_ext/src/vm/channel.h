// Plain data and arrays as a C++ value tree: what crosses between interpreters. Each side converts under its own GIL, so that
// no Python object is ever seen by two interpreters; an array crosses as its Tensor, whose storage both sides share (§4.3).
#pragma once
#include <Python.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"

namespace walle::vm {

struct Value;
using Items = std::vector<Value>;

struct BigInt {
  std::string hex;  // as Python prints it in base 16, for what 64 bits do not hold
};
struct Text {
  std::string utf8;  // lone surrogates included
};
struct Bytes {
  std::string data;
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
  std::variant<std::monostate, bool, std::int64_t, BigInt, double, Text, Bytes, List, Tuple, Dict, Tensor> data;
};

inline Value text_value(std::string utf8) { return Value{Text{std::move(utf8)}}; }

// A value that is no plain data; the message names its type and where in the value it sits.
class NotPlain : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value that is larger than it may be; the message says where.
class TooLarge : public NotPlain {
 public:
  using NotPlain::NotPlain;
};

// How deep and how large a value may be; `bytes` counts arrays by their descriptions, `all_bytes` with their elements.
struct Limits {
  int depth = 100;
  std::int64_t nodes = 4'000'000;
  std::int64_t bytes = std::int64_t{256} << 20;
  std::int64_t all_bytes = 0;  // 0: no limit
};

// How this interpreter turns its arrays into Tensors and back; the bindings supply it, so that vm/ knows no pybind11.
struct ArrayPort {
  // True and a Tensor where the object is an array that may leave this interpreter; false where it is none.
  // Throws walle::Error where it is an array that cannot be sent, and may leave a Python error behind with false.
  bool (*take)(PyObject* object, Tensor& tensor);
  // A new reference, or null with a Python error set.
  PyObject* (*give)(const Tensor& tensor);
};

// Under the GIL of the object's interpreter. `root` is what an error calls the value, such as "result".
// Throws NotPlain. Subclasses of the plain types arrive as the plain type.
Value from_python(PyObject* object, const ArrayPort& port, const std::string& root, const Limits& limits = {});

// Under the GIL of the interpreter that shall own the object. A new reference, or null with a Python error set.
PyObject* to_python(const Value& value, const ArrayPort& port);

}  // namespace walle::vm
