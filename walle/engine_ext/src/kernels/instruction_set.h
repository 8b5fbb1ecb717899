// Definition of an instruction set by its folder, which dispatch.cpp reads.
#pragma once
#include "kernels/table.h"

namespace walle {

struct SetDefinition {
  InstructionSet set;
  // Replaces kernels in the table, which holds the scalar ones. Called only where the CPU has the set: this function itself may
  // use the set's instructions.
  void (*fill)(Table& table, ImageTable& image) noexcept = nullptr;
};

#define WALLE_SET(name)                     \
  namespace name {                          \
  SetDefinition instruction_set() noexcept; \
  }
#include "kernels/sets.inc"
#undef WALLE_SET

}  // namespace walle
