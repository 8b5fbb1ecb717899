// Attempts on untrusted model files: load, plan, and run if small enough.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "run/var.h"

namespace fuzz {

enum class Outcome { refused, planned, ran };

// `refused`: by an Error, or because it exceeded the limits of memory or loop iterations, both small here. `planned`: valid, but
// too large to run, or its values were refused. Any other outcome ends the program; meant for sanitized builds.
Outcome attempt(std::span<const std::uint8_t> file);

// Runs a model as a module on one backend with generated inputs and returns the outputs. Throws walle::Error.
std::vector<walle::Var> results(std::span<const std::uint8_t> file, std::string_view backend);

}  // namespace fuzz
