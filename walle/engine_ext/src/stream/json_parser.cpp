#include "stream/json_parser.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace walle::stream {

namespace {

constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};  // exact

bool is_digit(char character) noexcept { return character >= '0' && character <= '9'; }

bool is_plain(char character) noexcept {
  return character != '"' && character != '\\' && static_cast<unsigned char>(character) >= 0x20;
}

#if defined(__SSE2__)
struct Block {
  unsigned special;  // bits of quotes, backslashes and control characters
  unsigned high;     // of bytes beyond ASCII
};

Block look(const char* from) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
  const __m128i special =
      _mm_or_si128(control, _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'))));
  return {static_cast<unsigned>(_mm_movemask_epi8(special)), static_cast<unsigned>(_mm_movemask_epi8(bytes))};
}
#endif

std::uint8_t* write_utf8(std::uint8_t* out, std::uint32_t code) noexcept {
  if (code < 0x80) {
    *out++ = static_cast<std::uint8_t>(code);
  } else if (code < 0x800) {
    *out++ = static_cast<std::uint8_t>(0xc0 | code >> 6);
    *out++ = static_cast<std::uint8_t>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    *out++ = static_cast<std::uint8_t>(0xe0 | code >> 12);
    *out++ = static_cast<std::uint8_t>(0x80 | (code >> 6 & 0x3f));
    *out++ = static_cast<std::uint8_t>(0x80 | (code & 0x3f));
  } else {
    *out++ = static_cast<std::uint8_t>(0xf0 | code >> 18);
    *out++ = static_cast<std::uint8_t>(0x80 | (code >> 12 & 0x3f));
    *out++ = static_cast<std::uint8_t>(0x80 | (code >> 6 & 0x3f));
    *out++ = static_cast<std::uint8_t>(0x80 | (code & 0x3f));
  }
  return out;
}

}  // namespace

void JsonParser::refuse(std::string what) const { throw JsonFault{at(), std::move(what)}; }

void JsonParser::refuse_here() const {
  if (at_ == end_) refuse("the JSON ends here too early");
  refuse("this is not JSON");
}

void JsonParser::value(int depth) {
  skip_space();
  if (at_ == end_) refuse_here();
  switch (*at_) {
    case '"':
      text();
      return;
    case '{': return object(depth);
    case '[': return array(depth);
    case 't': return word("true", 0xc3);
    case 'f': return word("false", 0xc2);
    case 'n': return word("null", 0xc0);
    default: return number();
  }
}

void JsonParser::word(std::string_view text, std::uint8_t byte) {
  if (static_cast<std::size_t>(end_ - at_) < text.size() || std::string_view(at_, text.size()) != text) refuse_here();
  at_ += text.size();
  *out_++ = byte;
}

std::string_view JsonParser::text() {
  if (peek() != '"') refuse_here();
  const char* from = ++at_;
#if defined(__SSE2__)
  if (end_ - from >= 16) {
    const Block block = look(from);
    if (block.special != 0) {
      const unsigned length = static_cast<unsigned>(__builtin_ctz(block.special));
      if (from[length] == '"' && (block.high & ((1u << length) - 1)) == 0) {
        *out_ = static_cast<std::uint8_t>(0xa0 | length);
        std::memcpy(out_ + 1, from, 16);  // the output has room beyond its end
        out_ += 1 + length;
        at_ = from + length + 1;
        return {from, length};
      }
    }
  }
#endif
  return long_text(from);
}

std::string_view JsonParser::long_text(const char* from) {
  const char* scan = from;
  bool is_ascii = true;
#if defined(__SSE2__)
  for (; end_ - scan >= 16; scan += 16) {
    const Block block = look(scan);
    if (block.special != 0) {
      const unsigned length = static_cast<unsigned>(__builtin_ctz(block.special));
      is_ascii = is_ascii && (block.high & ((1u << length) - 1)) == 0;
      scan += length;
      break;
    }
    is_ascii = is_ascii && block.high == 0;
  }
#endif
  for (; scan != end_ && is_plain(*scan); ++scan) is_ascii = is_ascii && static_cast<unsigned char>(*scan) < 0x80;
  if (scan != end_ && *scan == '\\') return escaped_text(from, scan);
  at_ = scan;
  if (scan == end_) refuse("the JSON ends within a text");
  if (*scan != '"') refuse("a control character must be escaped within a text");
  if (!is_ascii) check_utf8(from, scan);
  const auto length = static_cast<std::size_t>(scan - from);
  out_ = write_text_head(out_, static_cast<std::uint32_t>(length));
  std::memcpy(out_, from, length);
  out_ += length;
  at_ = scan + 1;
  return {from, length};
}

std::uint32_t JsonParser::hex4(const char* from) const {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const char digit = from + i < end_ ? from[i] : '\0';
    std::uint32_t part = 0;
    if (is_digit(digit))
      part = static_cast<std::uint32_t>(digit - '0');
    else if (digit >= 'a' && digit <= 'f')
      part = static_cast<std::uint32_t>(digit - 'a' + 10);
    else if (digit >= 'A' && digit <= 'F')
      part = static_cast<std::uint32_t>(digit - 'A' + 10);
    else
      throw JsonFault{static_cast<std::size_t>(from - begin_), "\\u needs four hexadecimal digits"};
    code = code << 4 | part;
  }
  return code;
}

std::string_view JsonParser::escaped_text(const char* from, const char* first_escape) {
  std::uint8_t* body = out_ + 5;  // behind the longest head; the text is moved to its own
  std::uint8_t* to = body;
  const char* plain = from;
  for (const char* scan = first_escape;;) {
    while (scan != end_ && is_plain(*scan)) ++scan;
    at_ = scan;
    if (scan == end_) refuse("the JSON ends within a text");
    if (*scan != '"' && *scan != '\\') refuse("a control character must be escaped within a text");
    if (scan != plain) {
      check_utf8(plain, scan);
      std::memcpy(to, plain, static_cast<std::size_t>(scan - plain));
      to += scan - plain;
    }
    if (*scan == '"') break;
    if (++scan == end_) refuse("the JSON ends within a text");
    std::uint32_t code = 0;
    switch (*scan++) {
      case '"': code = '"'; break;
      case '\\': code = '\\'; break;
      case '/': code = '/'; break;
      case 'b': code = '\b'; break;
      case 'f': code = '\f'; break;
      case 'n': code = '\n'; break;
      case 'r': code = '\r'; break;
      case 't': code = '\t'; break;
      case 'u': {
        code = hex4(scan);
        scan += 4;
        if (code >= 0xd800 && code < 0xdc00 && end_ - scan >= 6 && scan[0] == '\\' && scan[1] == 'u') {
          const std::uint32_t low = hex4(scan + 2);
          if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            scan += 6;
          }
        }
        if (code >= 0xd800 && code < 0xe000) refuse("a lone surrogate is not a character");
        break;
      }
      default: refuse("this escape does not exist");
    }
    to = write_utf8(to, code);
    plain = scan;
  }
  const auto length = static_cast<std::size_t>(to - body);
  out_ = write_text_head(out_, static_cast<std::uint32_t>(length));
  std::memmove(out_, body, length);
  out_ += length;
  ++at_;
  return {reinterpret_cast<const char*>(out_) - length, length};
}

void JsonParser::check_utf8(const char* from, const char* to) const {
  const auto* at = reinterpret_cast<const unsigned char*>(from);
  const auto* end = reinterpret_cast<const unsigned char*>(to);
  while (at != end) {
    const unsigned char first = *at;
    if (first < 0x80) {
      ++at;
      continue;
    }
    const int more = first >= 0xc2 && first < 0xe0   ? 1
                     : first >= 0xe0 && first < 0xf0 ? 2
                     : first >= 0xf0 && first < 0xf5 ? 3
                                                     : 0;
    bool is_valid = more != 0 && end - at > more;
    std::uint32_t code = is_valid ? first & (0x3fu >> more) : 0;
    for (int i = 1; is_valid && i <= more; ++i) {
      is_valid = (at[i] & 0xc0) == 0x80;
      code = code << 6 | (at[i] & 0x3f);
    }
    is_valid = is_valid && !(more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) &&
               !(more == 3 && (code < 0x10000 || code > 0x10ffff));
    if (!is_valid) throw JsonFault{static_cast<std::size_t>(reinterpret_cast<const char*>(at) - begin_), "this is not UTF-8"};
    at += 1 + more;
  }
}

void JsonParser::number() {
  const char* from = at_;
  const bool is_negative = take('-');
  const char* digits = at_;
  std::uint64_t whole = 0;
  while (at_ != end_ && is_digit(*at_) && at_ - digits < 19) whole = whole * 10 + static_cast<std::uint64_t>(*at_++ - '0');
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

void JsonParser::array(int depth) {
  if (depth == 0) refuse("nested deeper than 90 levels; flatten it");
  ++at_;
  std::uint8_t* head = out_++;
  std::uint32_t count = 0;
  skip_space();
  if (!take(']')) {
    for (;;) {
      value(depth - 1);
      ++count;
      skip_space();
      if (take(']')) break;
      if (!take(',')) refuse_here();
    }
  }
  close(head, count, false);
}

// Notes in `open_` where the key may be equal to another one of its object.
void JsonParser::mark_key(std::string_view key) noexcept {
  std::uint64_t first = 0, last = 0;
  if (key.size() >= 8) {
    std::memcpy(&first, key.data(), 8);
    std::memcpy(&last, key.data() + key.size() - 8, 8);
  } else {
    for (std::size_t i = 0; i < key.size(); ++i) first = first << 8 | static_cast<unsigned char>(key[i]);
  }
  first += key.size();
  const auto print =
      static_cast<std::uint32_t>(((first * 0x9e3779b97f4a7c15) ^ (last * 0xc2b2ae3d27d4eb4f)) * 0xff51afd7ed558ccd >> 32);
  keys_.back().fingerprint = print;
  std::uint32_t& stamp = stamps_[print % kStamps];
  const std::uint32_t before = stamp;
  stamp = open_.back().number;
  if (before < open_.front().number) return;  // of no object that is open
  for (Open& open : open_) open.may_have_equal_keys = open.may_have_equal_keys || open.number == before;
}

void JsonParser::object(int depth) {
  if (depth == 0) refuse("nested deeper than 90 levels; flatten it");
  ++at_;
  std::uint8_t* head = out_++;
  std::uint32_t count = 0;
  const std::size_t first_key = keys_.size();
  open_.push_back({++objects_, false});
  skip_space();
  if (!take('}')) {
    for (;;) {
      keys_.push_back({static_cast<std::uint32_t>(out_ - start_), 0});
      mark_key(text());
      ++count;
      skip_space();
      if (!take(':')) refuse_here();
      value(depth - 1);
      skip_space();
      if (take('}')) break;
      if (!take(',')) refuse_here();
      skip_space();
    }
  }
  const bool may_have_equal_keys = open_.back().may_have_equal_keys;
  open_.pop_back();
  if (may_have_equal_keys && has_equal_keys(first_key)) merge_equal_keys(head, first_key, count);
  keys_.resize(first_key);
  close(head, count, true);
}

std::string_view JsonParser::key_text(const Key& key) const noexcept {
  PackedReader reader(start_, static_cast<std::size_t>(out_ - start_), key.at);
  Value text;
  reader.read(text);
  return {reinterpret_cast<const char*>(start_) + text.place, text.length};
}

bool JsonParser::has_equal_keys(std::size_t first_key) {
  const std::size_t count = keys_.size() - first_key;
  if (count <= 48) {
    for (std::size_t i = first_key; i < keys_.size(); ++i)
      for (std::size_t j = first_key; j < i; ++j)
        if (keys_[i].fingerprint == keys_[j].fingerprint && key_text(keys_[i]) == key_text(keys_[j])) return true;
    return false;
  }
  Vector<std::string_view> texts(count);
  for (std::size_t i = 0; i < count; ++i) texts[i] = key_text(keys_[first_key + i]);
  std::sort(texts.begin(), texts.end());
  return std::adjacent_find(texts.begin(), texts.end()) != texts.end();
}

// Keeps each key once, where it first stands, with its last value.
void JsonParser::merge_equal_keys(std::uint8_t* head, std::size_t first_key, std::uint32_t& count) {
  struct Place {
    std::size_t key, value;  // indices into keys_
  };
  std::unordered_map<std::string_view, std::size_t> found;
  std::vector<Place> places;
  for (std::size_t i = first_key; i < keys_.size(); ++i) {
    const auto [where, is_new] = found.emplace(key_text(keys_[i]), places.size());
    if (is_new) places.push_back({i, i});
    places[where->second].value = i;
  }
  Vector<std::uint8_t> merged;
  for (const Place& place : places) {
    const std::uint8_t* key = start_ + keys_[place.key].at;
    PackedReader reader(start_, static_cast<std::size_t>(out_ - start_), keys_[place.value].at);
    Value name;
    reader.read(name);
    const std::string_view text = key_text(keys_[place.key]);
    merged.insert(merged.end(), key, reinterpret_cast<const std::uint8_t*>(text.data() + text.size()));
    const std::uint8_t* next = place.value + 1 == keys_.size() ? out_ : start_ + keys_[place.value + 1].at;
    merged.insert(merged.end(), static_cast<const std::uint8_t*>(start_ + reader.at()), next);
  }
  std::copy(merged.begin(), merged.end(), head + 1);
  out_ = head + 1 + merged.size();
  count = static_cast<std::uint32_t>(places.size());
}

// Writes the head of a container, whose items follow it with one byte of room.
void JsonParser::close(std::uint8_t* head, std::uint32_t count, bool is_map) {
  if (count < 16) {
    *head = static_cast<std::uint8_t>((is_map ? 0x80 : 0x90) | count);
    return;
  }
  const std::size_t more = count <= 0xffff ? 2 : 4;
  std::memmove(head + 1 + more, head + 1, static_cast<std::size_t>(out_ - head - 1));
  is_map ? write_map_head(head, count) : write_list_head(head, count);
  out_ += more;
}

}  // namespace walle::stream
