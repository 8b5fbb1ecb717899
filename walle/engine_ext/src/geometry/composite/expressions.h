// Expressions shared by several decompositions.
#pragma once
#include <algorithm>
#include <string>
#include <utility>

#include "geometry/emitter.h"

namespace walle {

inline constexpr Emitter::Ref kAbsent = Emitter::kAbsent;

// Return x in `dtype`: x itself if it has that type already, or is absent.
inline Emitter::Ref cast(Emitter& emitter, Emitter::Ref x, DType dtype) {
  if (x == kAbsent || emitter.operand(x).dtype == dtype) return x;
  return emitter.one("Cast", {x}, {{"to", std::string(dtype_name(dtype))}});
}

// Return x in another shape; a 0 in it is a length, as with allowzero.
inline Emitter::Ref reshape(Emitter& emitter, Emitter::Ref x, Dims shape) {
  return emitter.one("Reshape", {x}, {{"shape", std::move(shape)}, {"allowzero", std::int64_t{1}}});
}

// Return a constant of int64.
inline Emitter::Ref whole(Emitter& emitter, const Dims& numbers, Dims shape) {
  Tensor tensor = Tensor::empty(DType::i64, std::move(shape));
  std::copy(numbers.begin(), numbers.end(), tensor.data<std::int64_t>());
  return emitter.constant(std::move(tensor));
}

}  // namespace walle
