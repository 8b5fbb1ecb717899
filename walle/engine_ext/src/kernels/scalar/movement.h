// The kernels of rasters in plain C++: what those of every other backend mean.
#pragma once
#include "kernels/table.h"

namespace walle::scalar {

void fill_movement(Table& table) noexcept;

}  // namespace walle::scalar
