// Dropout: the identity outside of training; in training the node's seed determines which elements are dropped, so that runs are
// reproducible.
#include <random>

#include "geometry/composite/composite.h"

namespace walle {

using Ref = Emitter::Ref;

// Inputs: x, ratio (default 0.5), training_mode (false). Outputs: x with the fraction `ratio` of its elements set to 0 and the
// others scaled up; the mask of kept elements. Elements are selected by NumPy's uniform numbers after seed(seed), from a Mersenne
// twister.
std::vector<Ref> decompose_dropout(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype;
  const Dims shape = x.shape;
  const bool seeded = attributes.has("seed");
  const std::int64_t seed = attributes.get_int("seed", 0);
  const auto known = [&](std::size_t index, const char* to, const std::string& what) {
    const Tensor value = emitter.value(emitter.one("Cast", {inputs[index]}, {{"to", std::string(to)}}), what);
    if (value.size() != 1) throw Error(ErrorKind::shape, what + " is one value, not of shape " + to_string(value.shape()));
    return value;
  };
  const auto given = [&](std::size_t index) { return index < inputs.size() && inputs[index] != Emitter::kAbsent; };
  const bool training = given(2) && *known(2, "bool", "'training_mode'").data<bool>();
  const double ratio = training && given(1) ? *known(1, "float64", "'ratio'").data<double>() : 0.5;
  if (!training || ratio == 0) {
    std::vector<Ref> results{emitter.one("Identity", {inputs[0]})};
    if (outputs > 1) results.push_back(emitter.one("Expand", {emitter.number(1, DType::b8)}, {{"shape", shape}}));
    return results;
  }
  if (!(ratio > 0 && ratio < 1)) throw Error(ErrorKind::model, "a ratio of " + std::to_string(ratio) + "; it must be below 1");
  if (!seeded || seed < 0 || seed > INT64_C(0xffffffff))
    throw Error(ErrorKind::unsupported, "attribute 'seed' is " + (seeded ? std::to_string(seed) : std::string("missing")) +
                                            "; training_mode needs one from 0 to 2^32 - 1, so that runs can be repeated");
  Tensor kept = Tensor::empty(DType::b8, shape);
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  for (std::int64_t i = 0, count = kept.size(); i < count; ++i) {
    const std::uint32_t high = static_cast<std::uint32_t>(random()) >> 5, low = static_cast<std::uint32_t>(random()) >> 6;
    kept.data<bool>()[i] = (high * 67108864.0 + low) / 9007199254740992.0 >= ratio;  // 53 bits
  }
  const Ref mask = emitter.constant(std::move(kept));
  const Ref share = emitter.one("Cast", {mask}, {{"to", std::string(dtype_name(dtype))}});
  return {emitter.one("Mul", {emitter.one("Mul", {inputs[0], share}), emitter.number(1 / (1 - ratio), dtype)}), mask};
}

}  // namespace walle
