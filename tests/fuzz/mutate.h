// Mutations of models that know what a model is made of.
#pragma once
#include <random>

#include "model_form.h"

namespace fuzz {

using Random = std::minstd_rand;

// One change: an operator, an attribute, a shape, a type, an edge, a new node, or something taken from `other` (null: none).
void mutate(ModelForm& model, const ModelForm* other, Random& random);

}  // namespace fuzz
