// What a module's values hold at run time: tensors, and what is no tensor: sequences and optionals.
#pragma once
#include <variant>

#include "core/tensor.h"

namespace walle {

struct Sequence {
  std::vector<Tensor> items;
  DType dtype = DType::f32;  // of the items, also where there is none
};

// An optional that holds something is that thing itself; one that holds nothing is Nothing. Absent: an input that is left out.
struct Absent {};
struct Nothing {};
using Var = std::variant<Absent, Tensor, std::shared_ptr<const Sequence>, Nothing>;

// What the value is, for messages.
inline std::string kind_of(const Var& value) {
  constexpr const char* names[] = {"left out", "a tensor", "a sequence", "an empty optional"};
  return names[value.index()];
}

}  // namespace walle
