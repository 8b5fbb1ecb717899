// Description of an instruction set, defined by its folder and used by dispatch.cpp.
#pragma once
#include "kernels/table.h"

namespace walle {

struct InstructionSet {
  Backend backend;
  // Replaces kernels in the table, which holds the scalar ones. Called only where the CPU has the set: this function itself may
  // use the set's instructions.
  void (*fill)(Table& table, ImageTable& image) noexcept = nullptr;
};

#define WALLE_SET(name)                      \
  namespace name {                           \
  InstructionSet instruction_set() noexcept; \
  }
#include "kernels/sets.inc"
#undef WALLE_SET

}  // namespace walle
