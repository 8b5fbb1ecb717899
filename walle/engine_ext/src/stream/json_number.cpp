// Numbers of JSON: integers of 64 bits, and reals that round as a correct conversion does.
#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

#include "stream/json_parser.h"

namespace walle::stream {

namespace {

constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};  // exact

bool is_digit(char character) noexcept { return character >= '0' && character <= '9'; }

// Eight characters, the first in the lowest byte.
std::uint64_t eight_characters(const char* from) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, from, 8);
  return std::endian::native == std::endian::little ? word : __builtin_bswap64(word);
}

bool are_eight_digits(const char* from) noexcept {
  const std::uint64_t word = eight_characters(from);
  return ((word & 0xf0f0f0f0f0f0f0f0) | ((word + 0x0606060606060606) & 0xf0f0f0f0f0f0f0f0) >> 4) == 0x3333333333333333;
}

// The number of eight digits: pairs, then fours, then both halves are summed at once.
std::uint64_t eight_digits(const char* from) noexcept {
  std::uint64_t word = eight_characters(from) - 0x3030303030303030;
  word = word * 10 + (word >> 8);
  return ((word & 0x000000ff000000ff) * 0x000f424000000064 + (word >> 16 & 0x000000ff000000ff) * 0x0000271000000001) >> 32;
}

}  // namespace

void JsonParser::number() {
  const char* from = at_;
  const bool is_negative = take('-');
  const char* digits = at_;
  std::uint64_t whole = 0;
  if (end_ - digits >= 8 && are_eight_digits(digits)) {
    whole = eight_digits(digits);
    at_ += 8;
  }
  const char* at = at_;
  const char* const most = end_ - digits > 19 ? digits + 19 : end_;  // digits that do not overflow
  for (; at != most && is_digit(*at); ++at) whole = whole * 10 + static_cast<std::uint64_t>(*at - '0');
  at_ = at;
  bool is_long = false;  // beyond 64 bits, as an integer
  if (at_ != end_ && is_digit(*at_)) {
    const auto next = static_cast<std::uint64_t>(*at_++ - '0');
    is_long = whole > (std::numeric_limits<std::uint64_t>::max() - next) / 10;
    whole = whole * 10 + next;
    while (at_ != end_ && is_digit(*at_)) {
      is_long = true;
      ++at_;
    }
  }
  const auto whole_digits = at_ - digits;
  if (whole_digits == 0 || (whole_digits > 1 && *digits == '0')) {
    at_ = from;
    refuse_here();
  }
  int fraction_digits = 0;
  std::uint64_t mantissa = whole;
  if (at_ != end_ && *at_ == '.') {
    const char* first = ++at_;
    while (at_ != end_ && is_digit(*at_)) {
      if (at_ - first < 19) mantissa = mantissa * 10 + static_cast<std::uint64_t>(*at_ - '0');
      ++at_;
    }
    if (at_ == first) refuse_here();
    fraction_digits = static_cast<int>(std::min<std::ptrdiff_t>(at_ - first, 1000));
  }
  bool has_exponent = false;
  if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
    has_exponent = true;
    ++at_;
    if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    const char* first = at_;
    while (at_ != end_ && is_digit(*at_)) ++at_;
    if (at_ == first) refuse_here();
  }
  if (fraction_digits == 0 && !has_exponent) {
    if (is_long || (is_negative && whole > std::uint64_t{1} << 63)) {
      at_ = from;
      refuse("an integer needs more than 64 bits; send it as text");
    }
    out_ = is_negative ? write_integer(out_, static_cast<std::int64_t>(0 - whole)) : write_large(out_, whole);
    return;
  }
  // Up to 15 digits and powers of ten to 22 are exact, so that one division rounds as a correct conversion does.
  if (!has_exponent && whole_digits + fraction_digits <= 15) {
    const double size = static_cast<double>(mantissa) / kPowers[fraction_digits];
    out_ = write_real(out_, is_negative ? -size : size);
    return;
  }
  real(from, static_cast<std::size_t>(at_ - from));
}

void JsonParser::real(const char* from, std::size_t length) {
  double number = 0;
  const auto result = std::from_chars(from, from + length, number);
  if (result.ec == std::errc::result_out_of_range) {
    // Too large or too small: by the place of the first digit that is not 0.
    const bool is_negative = *from == '-';
    std::int64_t exponent = 0, place = 0;
    bool has_point = false, has_digit = false;
    const char* at = from + (is_negative ? 1 : 0);
    for (; at != from + length && *at != 'e' && *at != 'E'; ++at) {
      if (*at == '.') {
        has_point = true;
      } else {
        has_digit = has_digit || *at != '0';
        place += has_digit ? (has_point ? 0 : 1) : (has_point ? -1 : 0);
      }
    }
    if (at != from + length) {
      const bool is_down = *++at == '-';
      if (*at == '-' || *at == '+') ++at;
      for (; at != from + length && exponent < 1'000'000'000; ++at) exponent = exponent * 10 + (*at - '0');
      exponent = is_down ? -exponent : exponent;
    }
    number = place + exponent > 0 ? std::numeric_limits<double>::infinity() : 0.0;
    if (is_negative) number = -number;
  }
  out_ = write_real(out_, number);
}

}  // namespace walle::stream
