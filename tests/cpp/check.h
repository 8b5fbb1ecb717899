// Checks for test programs, which continue after a failure and report its place, and seeded random numbers.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "core/error.h"

namespace check {

inline int failures = 0;

inline void report(bool passed, const char* file, int line, const std::string& what) {
  if (passed) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

// Returns a random integer in [low, high].
inline std::int64_t whole(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// Rounds of a loop over random cases: `all` of them, or a quarter where WALLE_FEW_ROUNDS is set, as `make test` does.
inline int rounds(int all) {
  static const bool few = std::getenv("WALLE_FEW_ROUNDS") != nullptr;
  return few ? (all + 3) / 4 : all;
}

}  // namespace check

#define CHECK(condition) check::report((condition), __FILE__, __LINE__, #condition)
// Checks that the expression throws walle::Error of the given kind.
#define CHECK_ERROR(expression, expected)                                                  \
  do {                                                                                     \
    bool thrown = false;                                                                   \
    try {                                                                                  \
      (void)(expression);                                                                  \
    } catch (const walle::Error& error) {                                                  \
      thrown = error.kind() == walle::ErrorKind::expected;                                 \
    }                                                                                      \
    check::report(thrown, __FILE__, __LINE__, #expression " does not fail as " #expected); \
  } while (false)
