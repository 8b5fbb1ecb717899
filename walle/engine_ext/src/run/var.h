// Values of a module at run time: tensors, sequences and optionals.
#pragma once
#include <variant>

#include "core/tensor.h"

namespace walle {

struct Sequence {
  std::vector<Tensor> items;
  DType dtype = DType::f32;  // type of the items; an empty sequence has one too
};

// An optional with a value is that value itself; an empty one is Nothing. Absent: an input that is left out.
struct Absent {};
struct Nothing {};
using Var = std::variant<Absent, Tensor, std::shared_ptr<const Sequence>, Nothing>;

// Return the kind of the value, for messages.
inline std::string kind_of(const Var& value) {
  constexpr const char* names[] = {"left out", "a tensor", "a sequence", "an empty optional"};
  return names[value.index()];
}

}  // namespace walle
