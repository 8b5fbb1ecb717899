// Formula: short names for emitting elementwise arithmetic of one dtype.
#pragma once
#include "geometry/emitter.h"

namespace walle {

class Formula {
 public:
  using Ref = Emitter::Ref;

  Formula(Emitter& emitter, DType dtype) : emitter_(emitter), dtype_(dtype) {}

  Ref number(double value) const { return emitter_.number(value, dtype_); }
  Ref add(Ref a, Ref b) const { return emitter_.one("Add", {a, b}); }
  Ref sub(Ref a, Ref b) const { return emitter_.one("Sub", {a, b}); }
  Ref mul(Ref a, Ref b) const { return emitter_.one("Mul", {a, b}); }
  // With a number; not overloads, since a Ref is a number too.
  Ref plus(Ref a, double b) const { return b == 0.0 ? a : add(a, number(b)); }
  Ref times(Ref a, double b) const { return b == 1.0 ? a : mul(a, number(b)); }
  Ref div(Ref a, Ref b) const { return emitter_.one("Div", {a, b}); }
  Ref unary(std::string_view op, Ref a) const { return emitter_.one(op, {a}); }
  Ref binary(std::string_view op, Ref a, Ref b) const { return emitter_.one(op, {a, b}); }
  Ref less(Ref a, Ref b) const { return emitter_.one("Less", {a, b}); }
  Ref equal(Ref a, Ref b) const { return emitter_.one("Equal", {a, b}); }
  Ref negative(Ref a) const { return less(a, number(0)); }
  Ref where(Ref condition, Ref yes, Ref no) const { return emitter_.one("Where", {condition, yes, no}); }
  // Return `value` where the condition holds, else 0; and the reverse.
  Ref where(Ref condition, Ref value) const { return where(condition, value, number(0)); }
  Ref unless(Ref condition, Ref value) const { return where(condition, number(0), value); }
  // Clamp to [0, 1]; NaN stays.
  Ref between_0_and_1(Ref a) const { return emitter_.one("Minimum", {emitter_.one("Maximum", {a, number(0)}), number(1)}); }

 private:
  Emitter& emitter_;
  DType dtype_;
};

}  // namespace walle
