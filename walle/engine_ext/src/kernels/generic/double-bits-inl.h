// Bit representation of a float64, for plain code that the compiler vectorises.

inline double bits_as_double(std::uint64_t x) noexcept {
  double y;
  __builtin_memcpy(&y, &x, sizeof(y));
  return y;
}
inline std::uint64_t double_as_bits(double x) noexcept {
  std::uint64_t y;
  __builtin_memcpy(&y, &x, sizeof(y));
  return y;
}

inline double with_sign(double x, std::uint64_t odd) noexcept { return bits_as_double(double_as_bits(x) ^ (odd << 63)); }

// Added to a double below 2^51 it leaves the nearest integer in the low bits.
inline constexpr double kWhole = 0x1.8p52;
