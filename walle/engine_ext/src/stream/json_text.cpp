// Texts of JSON: UTF-8 is checked, escapes are resolved.
#include "stream/json_parser.h"
#include "stream/text_scan.h"
#include "stream/utf8.h"

namespace walle::stream {

namespace {

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

std::string_view JsonParser::text() {
  if (peek() != '"') refuse_here();
  const char* from = ++at_;
  // A text of one or two blocks without escapes, which most are: the copies have a constant size, for which the output has room
  // beyond its end.
  constexpr std::size_t kBlock = TextScan::kBytes;
  static_assert(2 * kBlock <= 32);  // texts below it have a head of one byte
  if (end_ - from >= static_cast<std::ptrdiff_t>(2 * kBlock)) {
    const TextBlock first = TextScan::look(from);
    std::size_t length = first.plain;
    bool is_ascii = first.is_ascii;
    std::memcpy(out_ + 1, from, kBlock);
    if (length == kBlock) {
      const TextBlock second = TextScan::look(from + kBlock);
      std::memcpy(out_ + 1 + kBlock, from + kBlock, kBlock);
      length += second.plain;
      is_ascii = is_ascii && second.is_ascii;
    }
    if (length < 2 * kBlock && is_ascii && from[length] == '"') {
      *out_ = static_cast<std::uint8_t>(0xa0 | length);
      out_ += 1 + length;
      at_ = from + length + 1;
      return {from, length};
    }
  }
  return long_text(from);
}

std::string_view JsonParser::long_text(const char* from) {
  const TextBlock plain = scan_text(from, end_);
  const char* scan = from + plain.plain;
  if (scan != end_ && *scan == '\\') return escaped_text(from, scan);
  at_ = scan;
  if (scan == end_) refuse("the JSON ends within a text");
  if (*scan != '"') refuse("a control character must be escaped within a text");
  if (!plain.is_ascii) check_utf8(from, scan);
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
    if (digit >= '0' && digit <= '9')
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
    scan += scan_text(scan, end_).plain;
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
        if (code >= 0xd800 && code < 0xe000) code = 0xfffd;  // half of a character that was cut: the replacement character
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
  const std::string_view text(from, static_cast<std::size_t>(to - from));
  if (const std::size_t at = find_invalid_utf8(text); at != text.size())
    throw JsonFault{static_cast<std::size_t>(from - begin_) + at, "this is not UTF-8"};
}

}  // namespace walle::stream
