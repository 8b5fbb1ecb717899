// What is done with bytes of unknown origin: load them, plan, and run what is small enough.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "run/var.h"

namespace fuzz {

enum class Outcome { refused, planned, ran };

// `refused`: by an Error, or because memory or rounds of loops did not suffice, both of which are scarce here. `planned`: sound,
// but too large to run, or its values were refused. Anything but these ends the program; sanitizers watch.
Outcome attempt(std::span<const std::uint8_t> file);

// What a model gives for made-up inputs, run as a module on one backend. Throws walle::Error.
std::vector<walle::Var> results(std::span<const std::uint8_t> file, std::string_view backend);

}  // namespace fuzz
