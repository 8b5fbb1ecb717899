// Which instruction set runs: detected once, or forced by WALLE_FORCE_ISA (the only place of the engine that reads the
// environment). A name that cannot be had is an error, never a silent default.
#include <array>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/table.h"

namespace walle {

namespace {

bool has_avx2() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

struct Tables {
  Table scalar, avx2;
  std::array<Backend, 2> backends;  // ascending preference

  Tables() noexcept : backends{{{"scalar", true}, {"avx2", has_avx2()}}} {
    fill_scalar(scalar);
    scalar.name = "scalar";
    avx2 = scalar;
    avx2.name = "avx2";
#if defined(__x86_64__)
    if (backends[1].available) fill_avx2(avx2);  // its very code needs the instructions
#endif
  }
  const Table& at(std::size_t index) const noexcept { return index == 0 ? scalar : avx2; }
};

const Tables& tables() noexcept {
  static const Tables filled;
  return filled;
}

const Table& named(std::string_view name, const std::string& who) {
  std::string known;
  for (std::size_t i = 0; i < tables().backends.size(); ++i) {
    const Backend& backend = tables().backends[i];
    if (backend.name == name) {
      if (backend.available) return tables().at(i);
      throw Error(ErrorKind::backend, who + " asks for backend '" + std::string(name) + "', which this CPU does not have");
    }
    known += (i ? ", " : "") + std::string(backend.name);
  }
  throw Error(ErrorKind::backend, who + " asks for backend '" + std::string(name) + "'; known are: " + known);
}

const Table& choose() {
  if (const char* forced = std::getenv("WALLE_FORCE_ISA")) return named(forced, "WALLE_FORCE_ISA");
  std::size_t best = 0;
  for (std::size_t i = 0; i < tables().backends.size(); ++i)
    if (tables().backends[i].available) best = i;
  return tables().at(best);
}

}  // namespace

std::span<const Backend> backends() noexcept { return tables().backends; }

const Table& kernels() {
  static const Table& chosen = choose();  // a refused name is thrown again at the next call
  return chosen;
}

const Table& kernels(std::string_view backend) { return backend == "auto" ? kernels() : named(backend, "the session"); }

}  // namespace walle
