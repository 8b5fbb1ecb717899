// Shape and Size: shapes are known when a session plans, so both are constants of the plan.
#include <algorithm>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

using Ref = Emitter::Ref;

// Return the dimensions in [start, end), bounds clamped and counted from the back where negative.
std::vector<Ref> decompose_shape(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims shape = emitter.operand(inputs[0]).shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  const auto bound = [&](const char* name, std::int64_t fallback) {
    const std::int64_t given = attributes.get_int(name, fallback);
    return std::clamp<std::int64_t>(given < 0 ? std::max(given, -rank) + rank : given, 0, rank);
  };
  const std::int64_t start = bound("start", 0), end = std::max(start, bound("end", rank));
  return {whole(emitter, Dims(shape.begin() + start, shape.begin() + end), {end - start})};
}

std::vector<Ref> decompose_size(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  return {whole(emitter, {element_count(emitter.operand(inputs[0]).shape)}, {})};
}

}  // namespace walle
