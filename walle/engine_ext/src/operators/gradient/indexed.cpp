// Gradients of indexed movements and of TopValues: what is gathered is scattered back, and the reverse.
#include "geometry/indexed_raster.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

Ref scattered(Emitter& emitter, Ref data, Ref indices, Ref updates, const IndexedMovement& movement, const char* reduction) {
  Attributes attributes = movement.attributes();
  attributes.set("reduction", std::string(reduction));
  return emitter.one("IndexedScatter", {data, indices, updates}, std::move(attributes));
}

// A scatter of updates into data.
struct Scatter {
  Emitter& emitter;
  Formula f;
  IndexedMovement movement;
  DType dtype;
  Dims update_shape;
  Ref data, indices, updates, y, g;

  explicit Scatter(const GradientCall& call)
      : emitter(call.emitter),
        f(formula_of(call)),
        movement(IndexedMovement::from(call.attributes)),
        dtype(emitter.operand(call.gradient).dtype),
        update_shape(emitter.operand(call.inputs[2]).shape),
        data(call.inputs[0]),
        indices(call.inputs[1]),
        updates(call.inputs[2]),
        y(call.result),
        g(call.gradient) {
    if (element_count(update_shape) != element_count(movement.size) || !movement.fills_plain())
      refuse("a scatter that repeats its updates, or leaves some out,");
  }

  // Return the elements of a value like the data, at the place of each update.
  Ref gather(Ref value) const {
    Attributes attributes = movement.attributes();
    attributes.set("shape", update_shape);
    return emitter.one("IndexedGather", {value, indices}, std::move(attributes));
  }
  Ref scatter(Ref to, Ref from, const char* reduction) const {
    return scattered(emitter, to, indices, from, movement, reduction);
  }
  Ref as_float(Ref condition) const { return cast(emitter, condition, dtype); }
};

// Updates replace: of several at one place each has the place's gradient.
void of_replacing(const GradientCall& call, const Scatter& s, std::vector<Ref>& gradients) {
  if (needs(call, 0)) gradients[0] = s.scatter(s.g, zeros(s.emitter, s.dtype, s.update_shape), "none");
  if (needs(call, 2)) gradients[2] = s.gather(s.g);
}

void of_adding(const GradientCall& call, const Scatter& s, std::vector<Ref>& gradients) {
  if (needs(call, 0)) gradients[0] = s.g;
  if (needs(call, 2)) gradients[2] = s.gather(s.g);
}

// A factor has the product of the others, also where factors are 0: the product of those that are not, unless another one is.
void of_multiplying(const GradientCall& call, const Scatter& s, std::vector<Ref>& gradients) {
  const Formula& f = s.f;
  if (needs(call, 0)) gradients[0] = s.scatter(s.g, s.updates, "mul");
  if (!needs(call, 2)) return;
  const Ref is_zero = f.equal(s.updates, f.number(0)), patched = f.where(is_zero, f.number(1), s.updates);
  const Dims shape = s.emitter.operand(s.data).shape;
  const Ref zero_counts = s.scatter(zeros(s.emitter, s.dtype, shape), s.as_float(is_zero), "add");
  const Ref others = f.div(s.gather(f.mul(s.g, s.scatter(s.data, patched, "mul"))), patched);
  gradients[2] = f.where(f.equal(s.gather(zero_counts), s.as_float(is_zero)), others);
}

// Equal parts for all that are the result, the data's own element among them.
void of_choosing(const GradientCall& call, const Scatter& s, std::vector<Ref>& gradients) {
  const Formula& f = s.f;
  const Ref own = f.equal(s.data, s.y), chosen = f.equal(s.updates, s.gather(s.y));
  const Ref part = f.div(s.g, s.scatter(s.as_float(own), s.as_float(chosen), "add"));
  if (needs(call, 0)) gradients[0] = f.where(own, part);
  if (needs(call, 2)) gradients[2] = f.where(chosen, s.gather(part));
}

}  // namespace

std::vector<Ref> of_indexed_gather(const GradientCall& call) {
  const Dims shape = call.emitter.operand(call.inputs[0]).shape;
  const DType dtype = call.emitter.operand(call.gradient).dtype;
  std::vector<Ref> gradients = no_gradients(call);
  gradients[0] = scattered(call.emitter, zeros(call.emitter, dtype, shape), call.inputs[1], call.gradient,
                           IndexedMovement::from(call.attributes), "add");
  return gradients;
}

std::vector<Ref> of_indexed_scatter(const GradientCall& call) {
  const Scatter scatter(call);
  std::vector<Ref> gradients = no_gradients(call);
  const std::string reduction = call.attributes.get_string("reduction", "none");
  if (reduction == "none")
    of_replacing(call, scatter, gradients);
  else if (reduction == "add")
    of_adding(call, scatter, gradients);
  else if (reduction == "mul")
    of_multiplying(call, scatter, gradients);
  else
    of_choosing(call, scatter, gradients);
  return gradients;
}

std::vector<Ref> of_top_values(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  const Dims shape = emitter.operand(call.inputs[0]).shape;
  const Ref places = emitter.one("TopIndices", {call.inputs[0]}, call.attributes);
  const Ref nothing = zeros(emitter, emitter.operand(call.gradient).dtype, shape);
  return {emitter.one("ScatterElements", {nothing, places, call.gradient}, {{"axis", call.attributes.get_int("axis", -1)}})};
}

}  // namespace walle::gradient
