// Parser of JSON values that writes them as MessagePack.
#pragma once
#include <string>
#include <string_view>

#include "stream/packed.h"

namespace walle::stream {

// A fault in the JSON, at this byte.
struct JsonFault {
  std::size_t at;
  std::string what;
};

// Upper bound of the bytes that `size` bytes of JSON become: `1.5,` becomes 9 bytes.
constexpr std::size_t packed_bound(std::size_t size) noexcept { return 9 * (size / 4 + 1) + 64; }

class JsonParser {
 public:
  // Writes to `out`, which has packed_bound(json.size()) bytes.
  JsonParser(std::string_view json, std::uint8_t* out)
      : begin_(json.data()), at_(json.data()), end_(json.data() + json.size()), start_(out), out_(out) {
    stamps_.assign(kStamps, 0);
    open_.reserve(kMaxDepth + 1);
    keys_.reserve(64);
  }

  void skip_space() noexcept {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  bool at_end() const noexcept { return at_ == end_; }
  char peek() const noexcept { return at_ == end_ ? '\0' : *at_; }
  // Consumes the character, or returns false.
  bool take(char character) noexcept {
    if (at_ == end_ || *at_ != character) return false;
    ++at_;
    return true;
  }

  // Parses a value of at most `depth` levels of containers. They throw JsonFault.
  void value(int depth);
  // Parses a text and returns it, where it stands in the JSON or in the output.
  std::string_view text();
  [[noreturn]] void refuse(std::string what) const;
  [[noreturn]] void refuse_here() const;

  std::uint8_t* out() noexcept { return out_; }
  void set_out(std::uint8_t* out) noexcept { out_ = out; }
  std::size_t at() const noexcept { return static_cast<std::size_t>(at_ - begin_); }

 private:
  static constexpr std::size_t kStamps = 2048;
  struct Key {
    std::uint32_t at, fingerprint;  // place of its head in the output
  };

  void object(int depth);
  void array(int depth);
  void number();
  void word(std::string_view text, std::uint8_t byte);
  std::string_view long_text(const char* from);
  std::string_view escaped_text(const char* from, const char* first_escape);
  std::uint32_t hex4(const char* from) const;
  void real(const char* from, std::size_t length);
  void check_utf8(const char* from, const char* to) const;
  void mark_key(std::string_view key) noexcept;
  bool has_equal_keys(std::size_t first_key);
  void merge_equal_keys(std::uint8_t* head, std::size_t first_key, std::uint32_t& count);
  std::string_view key_text(const Key& key) const noexcept;
  void close(std::uint8_t* head, std::uint32_t count, bool is_map);

  const char *begin_, *at_, *end_;
  std::uint8_t *start_, *out_;
  Vector<Key> keys_;              // of the open objects
  struct Open {
    std::uint32_t number;
    bool may_have_equal_keys;
  };
  std::vector<Open> open_;         // objects, each within the one before it
  Vector<std::uint32_t> stamps_;  // by fingerprint: the latest object with such a key
  std::uint32_t objects_ = 0;
};

}  // namespace walle::stream
