// Structure-aware mutations of models.
#pragma once
#include <random>

#include "model_form.h"

namespace fuzz {

using Random = std::minstd_rand;

// Applies one change: an operator, an attribute, a shape, a type, an edge, a new node, or a part of `other` (which may be null).
void mutate(ModelForm& model, const ModelForm* other, Random& random);

}  // namespace fuzz
