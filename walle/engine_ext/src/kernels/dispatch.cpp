// Selection of the instruction set: detected once, or forced by WALLE_FORCE_ISA (no other code of the engine reads the
// environment). A name that is unknown, or that the CPU lacks, is an error, never a silent default.
#include <array>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/bfloat16.h"
#include "kernels/bytes.h"
#include "kernels/image.h"
#include "kernels/instruction_set.h"

namespace walle {

namespace {

#define WALLE_SET(name) &name::instruction_set,
constexpr SetDefinition (*kSets[])() noexcept = {
#include "kernels/sets.inc"
};
#undef WALLE_SET
constexpr std::size_t kSetCount = std::size(kSets);

// One table for each set. Each starts from the scalar kernels, which are first.
struct Tables {
  std::array<InstructionSet, kSetCount> sets;
  std::array<Table, kSetCount> filled;
  std::array<ImageTable, kSetCount> images;

  Tables() noexcept {
    for (std::size_t i = 0; i < kSetCount; ++i) {
      const SetDefinition definition = (*kSets[i])();
      sets[i] = definition.set;
      filled[i] = filled[0];
      images[i] = images[0];
      filled[i].name = sets[i].name;
      filled[i].image = &images[i];
      if (sets[i].available) definition.fill(filled[i], images[i]);
    }
  }
};

const Tables& tables() noexcept {
  static const Tables filled;
  return filled;
}

std::string names(bool all) {
  std::string list;
  for (const InstructionSet& set : tables().sets) {
    if (!all && !set.available) continue;
    if (!list.empty()) list += ", ";
    list += set.name;
  }
  return list;
}

const Table& named(std::string_view name, const std::string& who) {
  const std::string asked = who + " asks for backend '" + std::string(name) + "'";
  for (std::size_t i = 0; i < kSetCount; ++i) {
    if (tables().sets[i].name != name) continue;
    if (tables().sets[i].available) return tables().filled[i];
    throw Error(ErrorKind::backend, asked + ", which this CPU does not have; it has: " + names(false));
  }
  throw Error(ErrorKind::backend, asked + "; known are: " + names(true));
}

const Table& choose() {
  if (const char* forced = std::getenv("WALLE_FORCE_ISA")) return named(forced, "WALLE_FORCE_ISA");
  std::size_t best = 0;
  for (std::size_t i = 0; i < kSetCount; ++i)
    if (tables().sets[i].available && tables().sets[i].exact) best = i;
  return tables().filled[best];
}

}  // namespace

bool forced_instruction_set() noexcept {
  static const bool forced = std::getenv("WALLE_FORCE_ISA") != nullptr;
  return forced;
}

std::span<const InstructionSet> instruction_sets() noexcept { return tables().sets; }

const Table& kernels() {
  static const Table& chosen = choose();  // an error for an unavailable name is thrown again at the next call
  return chosen;
}

const Table& kernels(std::string_view backend) { return backend == "auto" ? kernels() : named(backend, "the session"); }

const Bytes& bytes(const Table& table) noexcept { return *table.bytes; }

const Bfloat16* bfloat16(const Table& table) noexcept { return table.bfloat16; }

}  // namespace walle
