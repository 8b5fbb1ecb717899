// Gradient rules by operator, one file for each family; gradient.cpp lists them.
#pragma once
#include "operators/gradient/gradient.h"

namespace walle::gradient {

// Return the gradient of an operand that was broadcast: summed over the axes along which it was repeated.
Emitter::Ref summed_to(Emitter& emitter, Emitter::Ref gradient, const Dims& shape);

std::vector<Emitter::Ref> of_add(const GradientCall& call);
std::vector<Emitter::Ref> of_div(const GradientCall& call);
std::vector<Emitter::Ref> of_exp(const GradientCall& call);
std::vector<Emitter::Ref> of_matmul(const GradientCall& call);
std::vector<Emitter::Ref> of_mul(const GradientCall& call);
std::vector<Emitter::Ref> of_neg(const GradientCall& call);
std::vector<Emitter::Ref> of_sub(const GradientCall& call);

}  // namespace walle::gradient
