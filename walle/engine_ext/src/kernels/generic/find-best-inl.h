// Search for the best element, the second half of an argmax.

// Returns the position of the first element that equals `best` or is NaN.
template <class T>
inline std::int64_t find_best(const T* from, std::int64_t stride, std::int64_t count, T best) noexcept {
  constexpr std::int64_t kBlock = 256;
  std::int64_t start = 0;
  const auto found = [best](T x) noexcept { return static_cast<unsigned>(x == best) | static_cast<unsigned>(x != x); };
  if (stride == 1)
    for (; start + kBlock <= count; start += kBlock) {
      unsigned any = 0;
      for (std::int64_t i = start; i < start + kBlock; ++i) any |= found(from[i]);
      if (any) break;
    }
  while (start + 1 < count && !found(from[start * stride])) ++start;
  return start;
}
