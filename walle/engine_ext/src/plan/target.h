// Target of a session or module: the kernels of a device, given or left to search, and a number of threads.
#pragma once
#include "plan/kernel_set.h"
#include "plan/updates.h"

namespace walle {

struct Target {
  const KernelSet* kernels = nullptr;
  bool searched = false;  // each plan may take the kernel set of the device on which it costs least (eq. 2)
  int threads = 1;
  Forced forced = {};
  Updates updates = {};

  const Device& device() const noexcept { return kernels->device(); }
};

}  // namespace walle
