// Quantised convolutions and matrix products by constant weights as integer products, where supported: see
// atomic/products/integer_products.h for the conditions.
#pragma once
#include "geometry/composite/composite.h"

namespace walle {

struct IntegerOperands {
  using Ref = Emitter::Ref;
  Ref x, x_zero, w, w_zero;
  Ref bias = Emitter::kAbsent;
  // The scale of the sums in units of the result, and the result's zero point; absent: the result is the sums.
  Ref scale = Emitter::kAbsent, zero = Emitter::kAbsent;
};

// x [batch, channels, in...] and w [out channels, in channels, kernel...] as in Conv, with Conv's attributes. Return nothing if
// weights are not constant, do not fit int8 without their zero point, or a zero point of x or of the result is not one number.
std::optional<Emitter::Ref> integer_conv_form(Emitter& emitter, const IntegerOperands& operands, const Attributes& attributes);
// x [..., k] times w [k, columns]; nothing under the same conditions.
std::optional<Emitter::Ref> integer_linear_form(Emitter& emitter, const IntegerOperands& operands, const Attributes& attributes);

// Move the channels of a value [batch, channels, ...] last, and back: rasters, which merge away between two such operators.
Emitter::Ref channels_last(Emitter& emitter, Emitter::Ref value);
Emitter::Ref channels_second(Emitter& emitter, Emitter::Ref value);

// Return x * y / z, for scales of float32; 16-bit floats are widened.
Emitter::Ref scale_of(Emitter& emitter, Emitter::Ref x, Emitter::Ref y, Emitter::Ref z);

}  // namespace walle
