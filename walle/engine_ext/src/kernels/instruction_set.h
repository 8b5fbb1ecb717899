// Description of an instruction set, which its folder gives to dispatch.cpp.
#pragma once
#include "kernels/table.h"

namespace walle {

struct InstructionSet {
  Backend backend;
  // Puts the set's kernels over those that the table holds, which are scalar's. Called only where the CPU has the set, whose
  // instructions this very function may use.
  void (*fill)(Table& table, ImageTable& image) noexcept = nullptr;
};

#define WALLE_SET(name)                      \
  namespace name {                           \
  InstructionSet instruction_set() noexcept; \
  }
#include "kernels/sets.inc"
#undef WALLE_SET

}  // namespace walle
