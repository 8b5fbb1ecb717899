#include "stream/json_parser.h"

namespace walle::stream {

JsonParser::JsonParser(std::string_view json, std::uint8_t* out)
    : begin_(json.data()), at_(json.data()), end_(json.data() + json.size()), start_(out), out_(out) {
  stamps_.assign(kStamps, 0);
  open_.reserve(8);
  keys_.reserve(64);
}

void JsonParser::skip_spaces() noexcept {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
}

void JsonParser::refuse(std::string what) const { throw JsonFault{at(), std::move(what)}; }

void JsonParser::refuse_here() const {
  if (at_ == end_) refuse("the JSON ends here too early");
  refuse("this is not JSON");
}

void JsonParser::value(int depth) {
  skip_space();
  if (at_ == end_) refuse_here();
  switch (*at_) {
    case '"': text(); return;
    case '{': return object<false>(depth);
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

void JsonParser::array(int depth) {
  if (depth == 0) refuse("nested deeper than 90 levels; flatten it");
  ++at_;
  std::uint8_t *head = out_, *body = ++out_;
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
  (void)close(head, body, count, false);
}

}  // namespace walle::stream
