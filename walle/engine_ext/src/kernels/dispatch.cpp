// Which instruction set runs: detected once, or forced by WALLE_FORCE_ISA (the only place of the engine that reads the
// environment). A name that cannot be had is an error, never a silent default.
#include <array>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/image.h"
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

bool has_avx512() noexcept {
#if defined(__x86_64__)
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// Each starts from the scalar kernels; its very code needs the instructions, so it is filled on a CPU that has them only.
struct Tables {
  std::array<Backend, 3> backends;  // ascending preference
  std::array<Table, 3> filled;
  std::array<ImageTable, 3> images;

  Tables() noexcept : backends{{{"scalar", true}, {"avx2", has_avx2()}, {"avx512", has_avx512()}}} {
    fill_scalar(filled[0]);
    filled[1] = filled[2] = filled[0];
    for (std::size_t i = 0; i < filled.size(); ++i) filled[i].name = backends[i].name;
#if defined(__x86_64__)
    if (backends[1].available) fill_avx2(filled[1]);
    if (backends[2].available) fill_avx512(filled[2]);
#endif
    fill_scalar_image(images[0]);
#if defined(__x86_64__)
    if (backends[1].available) fill_avx2_image(images[1]);
    if (backends[2].available) fill_avx512_image(images[2]);
#endif
    for (std::size_t i = 0; i < filled.size(); ++i) filled[i].image = &images[i];
  }
  const Table& at(std::size_t index) const noexcept { return filled[index]; }
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
