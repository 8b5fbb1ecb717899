// The kernels of packed layouts in plain C++ (see PanelArgs and LaneArgs): what those of every other backend mean.
#pragma once
#include "kernels/table.h"

namespace walle::scalar {

void fill_packed(Table& table) noexcept;
void fill_winograd(Table& table) noexcept;

}  // namespace walle::scalar
