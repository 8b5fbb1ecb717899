// The host as a device: its memory, which steps use in place, and a kernel set for each instruction set of its CPU.
#pragma once
#include <string_view>

#include "core/device.h"

namespace walle {

const Device& host_device() noexcept;
// Return the kernel set of an instruction set; "auto": that of the CPU's best, or of the one that WALLE_FORCE_ISA names. Throws
// Error (backend) for a name that is unknown or that this CPU lacks.
const KernelSet& host_kernels(std::string_view instruction_set);

}  // namespace walle
