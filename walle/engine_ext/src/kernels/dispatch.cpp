// Which instruction set runs: detected once, or forced by WALLE_FORCE_ISA (the only place of the engine that reads the
// environment). A name that cannot be had is an error, never a silent default.
#include <array>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/bfloat16.h"
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
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

bool has_avx512_bf16() noexcept {
#if defined(__x86_64__)
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// Every 64-bit ARM CPU has it.
#if defined(__aarch64__)
constexpr bool kHasNeon = true;
#else
constexpr bool kHasNeon = false;
#endif

// Each starts from the scalar kernels; its very code needs the instructions, so it is filled on a CPU that has them only.
struct Tables {
  std::array<Backend, 5> backends;  // ascending preference
  std::array<Table, 5> filled;
  std::array<ImageTable, 5> images;

  Tables() noexcept
      : backends{{{"scalar", true},
                  {"avx2", has_avx2()},
                  {"avx512", has_avx512()},
                  {"neon", kHasNeon},
                  {"avx512_bf16", has_avx512_bf16()}}} {
    fill_scalar(filled[0]);
    for (std::size_t i = 0; i < filled.size(); ++i) {
      filled[i] = filled[0];
      filled[i].name = backends[i].name;
    }
#if defined(__x86_64__)
    if (backends[1].available) fill_avx2(filled[1]);
    if (backends[2].available) fill_avx512(filled[2]);
    if (backends[4].available) fill_avx512(filled[4]);  // what it adds: kernels/bfloat16.h
#elif defined(__aarch64__)
    fill_neon(filled[3]);
#endif
    fill_scalar_image(images[0]);
    images.fill(images[0]);  // plain loops: the baseline of 64-bit ARM has vectors already
#if defined(__x86_64__)
    if (backends[1].available) fill_avx2_image(images[1]);
    if (backends[2].available) fill_avx512_image(images[2]);
    if (backends[4].available) fill_avx512_image(images[4]);
#endif
    for (std::size_t i = 0; i < filled.size(); ++i) filled[i].image = &images[i];
  }
  const Table& at(std::size_t index) const noexcept { return filled[index]; }
};

const Tables& tables() noexcept {
  static const Tables filled;
  return filled;
}

std::string names(bool all) {
  std::string list;
  for (const Backend& backend : tables().backends) {
    if (!all && !backend.available) continue;
    if (!list.empty()) list += ", ";
    list += backend.name;
  }
  return list;
}

const Table& named(std::string_view name, const std::string& who) {
  const std::string asked = who + " asks for backend '" + std::string(name) + "'";
  for (std::size_t i = 0; i < tables().backends.size(); ++i) {
    if (tables().backends[i].name != name) continue;
    if (tables().backends[i].available) return tables().at(i);
    throw Error(ErrorKind::backend, asked + ", which this CPU does not have; it has: " + names(false));
  }
  throw Error(ErrorKind::backend, asked + "; known are: " + names(true));
}

const Table& choose() {
  if (const char* forced = std::getenv("WALLE_FORCE_ISA")) return named(forced, "WALLE_FORCE_ISA");
  std::size_t best = 0;
  for (std::size_t i = 0; i < tables().backends.size(); ++i)
    if (tables().backends[i].available && is_exact(tables().backends[i])) best = i;
  return tables().at(best);
}

}  // namespace

bool forced_backend() noexcept {
  static const bool forced = std::getenv("WALLE_FORCE_ISA") != nullptr;
  return forced;
}

std::span<const Backend> backends() noexcept { return tables().backends; }

const Table& kernels() {
  static const Table& chosen = choose();  // a refused name is thrown again at the next call
  return chosen;
}

const Table& kernels(std::string_view backend) { return backend == "auto" ? kernels() : named(backend, "the session"); }

}  // namespace walle
