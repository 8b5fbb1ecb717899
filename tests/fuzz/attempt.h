// What is done with bytes of unknown origin: load them, plan, and run what is small enough.
#pragma once
#include <cstdint>
#include <span>

namespace fuzz {

enum class Outcome { refused, planned, ran };

// `refused`: by an Error, or because memory or rounds of loops did not suffice, both of which are scarce here. `planned`: sound, but
// too large to run, or its values were refused. Anything but these ends the program; sanitizers watch.
Outcome attempt(std::span<const std::uint8_t> file);

}  // namespace fuzz
