// Targets by the names of backends in the public API.
#pragma once
#include "plan/target.h"

namespace walle {

// Return the target of a backend: an instruction set of the host, or "auto", where search chooses between them. Throws Error
// (backend) for a name that is unknown or that this machine lacks, and for a number of threads outside [1, 256].
Target find_target(std::string_view backend, int threads);

}  // namespace walle
