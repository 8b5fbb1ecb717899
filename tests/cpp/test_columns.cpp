// Tests of event columns: damaged and nested bytes, JSON cut at each byte, equal keys, groups and windows against plain loops,
// and aggregations of extreme numbers. The meaning is compared with Python's in tests/pipeline/test_event_columns.py.
#include <map>
#include <set>

#include "check.h"
#include "stream/event_groups.h"
#include "stream/field_table.h"
#include "stream/json_events.h"
#include "stream/packed_writer.h"
#include "stream/scratch.h"
#include "stream/text_scan.h"
#include "stream/utf8.h"

namespace {

using namespace walle::stream;

std::string event_json(const std::string& contents, int ts_ms = 5) {
  return R"({"event_id":"click","page_id":"p","ts_ms":)" + std::to_string(ts_ms) + R"(,"contents":)" + contents + "}";
}

EventRows view_of(std::shared_ptr<const EventBatch> batch) {
  EventRows view{std::move(batch), {}};
  for (std::uint32_t i = 0; i < view.batch->size(); ++i) view.rows.push_back(i);
  return view;
}

// Returns whether the bytes are one value of plain data: texts and keys in UTF-8, and no extensions.
bool is_plain(PackedReader& reader, const std::uint8_t* data, int depth = 0) {
  Value value;
  if (depth > kMaxDepth || !reader.read(value) || value.kind == Kind::extension) return false;
  const auto is_text = [&](const Value& text) {
    return is_utf8({reinterpret_cast<const char*>(data) + text.place, text.length});
  };
  if (value.kind == Kind::text) return is_text(value);
  if (value.kind != Kind::list && value.kind != Kind::map) return true;
  for (std::uint32_t i = 0; i < value.length; ++i) {
    Value key;
    if (value.kind == Kind::map && (!reader.read(key) || key.kind != Kind::text || !is_text(key))) return false;
    if (!is_plain(reader, data, depth + 1)) return false;
  }
  return true;
}

// Copies the contents of each event into a writer, which refuses what is not plain data.
void copy_contents(const EventBatch& batch) {
  for (std::size_t row = 0; row < batch.size(); ++row) {
    PackedWriter writer;
    PackedReader contents(batch.data(), batch.data_size(), batch.contents(row).at);
    try {
      writer.copy(contents, batch.data());
    } catch (const EventFault&) {
      continue;
    }
    const std::string_view bytes = writer.bytes();
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    PackedReader written(data, bytes.size());
    CHECK(is_plain(written, data));
    CHECK(written.left() == 0);
  }
}

// Reads events and does all that a task can do with them. Returns false where they are refused.
bool use(std::shared_ptr<const EventBatch> batch) {
  try {
    const EventRows view = view_of(std::move(batch));
    const EventGroups all = one_group(view);
    for (const char* name : {"n", "item.price", "l", "event_id", "ts_ms", "contents"}) {
      const Vector<Value> values = view.batch->fields(view.rows, FieldPath(name), name);
      (void)sums(all, values);
      (void)extremes(all, values, true);
      (void)deviations(all, values);
      (void)quantiles(all, values, 1, 4);
      (void)count_values(all, values);
      for (const Value& value : values) {
        if (value.kind == Kind::text) CHECK(view.batch->text(value).size() == value.length);
        if (value.kind != Kind::list && value.kind != Kind::map) continue;
        PackedReader reader(view.batch->data(), view.batch->data_size(), value.place);
        CHECK(reader.skip());
      }
    }
    FieldTable table;
    const std::vector<FieldPath> paths{FieldPath("n"), FieldPath("item.price"), FieldPath("l"), FieldPath("item"),
                                       FieldPath("n2")};
    for (const FieldPath& path : paths) table.add(path);
    Vector<Value> values(table.size());
    for (const std::uint32_t row : view.rows) {
      table.read(*view.batch, row, values.data(), 1);
      for (std::size_t i = 0; i < paths.size(); ++i) {
        const Value one = view.batch->field(row, paths[i]);
        CHECK(values[i].kind == one.kind && values[i].length == one.length);
        CHECK(one.kind == Kind::nil || values[i].large == one.large);  // nil says nothing of its payload
      }
    }
    (void)split_by_window(group_by(all, "n"), WindowKind::sliding, 10, 3, 1);
    copy_contents(*view.batch);
    return true;
  } catch (const EventFault&) {
    return false;
  }
}

// Each copy stands in memory of its own size, so that the sanitizer finds a read beyond its end.
bool use_bytes(const std::string& bytes) {
  auto copy = std::make_shared<Vector<std::uint8_t>>(bytes.begin(), bytes.end());
  auto batch = std::make_shared<EventBatch>(copy, copy->data(), copy->size());
  try {
    batch->read_all();
  } catch (const EventFault&) {
    return false;
  }
  return use(batch);
}

bool use_json(const std::string& json) {
  const Vector<char> copy(json.begin(), json.end());
  try {
    return use(read_json_events({copy.data(), copy.size()}));
  } catch (const EventFault&) {
    return false;
  }
}

std::string bytes_of(const EventBatch& batch) {
  std::uint8_t head[kMaxHeadBytes];
  std::string bytes(reinterpret_cast<char*>(head),
                    static_cast<std::size_t>(write_list_head(head, static_cast<std::uint32_t>(batch.size())) - head));
  for (std::size_t i = 0; i < batch.size(); ++i) bytes += batch.row(i);
  return bytes;
}

const std::string kContents =
    R"({"n":-1.5e3,"item":{"price":12,"name":"a longer name than sixteen"},"l":[1,null,true,[{}],"\u00e9\n\ud83d\ude00"],"n2":18446744073709551615})";

void test_damage() {
  std::string json = "[" + event_json(kContents) + "," + event_json("{\"n\":3}", 7);
  for (const char* more : {"2", "2", "\"a\"", "{\"k\":[1]}"})  // contents that repeat those before
    json += "," + event_json(kContents.substr(0, kContents.size() - 1) + ",\"n3\":" + more + ",\"n4\":true}");
  json += "]";
  CHECK(use_json(json));
  for (std::size_t size = 0; size < json.size(); ++size) CHECK(!use_json(json.substr(0, size)) || size == 0);
  const std::string bytes = bytes_of(*read_json_events(json));
  CHECK(use_bytes(bytes));
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK(!use_bytes(bytes.substr(0, size)));
  const int step = 256 / check::rounds(256);
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (int byte = static_cast<int>(at) % step; byte < 256; byte += step) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(byte);
      (void)use_bytes(damaged);
    }
  std::mt19937_64 random(7);
  for (int round = 0; round < check::rounds(20'000); ++round) {
    std::string damaged = json;
    for (auto left = check::whole(random, 1, 4); left > 0; --left)
      damaged[static_cast<std::size_t>(check::whole(random, 0, static_cast<std::int64_t>(json.size()) - 1))] =
          "{}[]\",:.0e-+\\u\x01\xc3t"[check::whole(random, 0, 16)];
    (void)use_json(damaged);
  }
}

// Both scans against a plain loop, each text in memory of its own size.
template <typename Scan>
void test_scan() {
  std::mt19937_64 random(5);
  for (int round = 0; round < check::rounds(20'000); ++round) {
    Vector<char> text(static_cast<std::size_t>(check::whole(random, 0, 70)));
    for (char& byte : text)
      byte = check::whole(random, 0, 30) == 0 ? static_cast<char>(check::whole(random, 0, 255))
                                              : "abc 09~\x7f"[check::whole(random, 0, 7)];
    std::size_t plain = 0;
    bool is_ascii = true;
    for (; plain < text.size(); ++plain) {
      const auto byte = static_cast<unsigned char>(text[plain]);
      if (byte == '"' || byte == '\\' || byte < 0x20) break;
      is_ascii = is_ascii && byte < 0x80;
    }
    const TextBlock found = scan_text<Scan>(text.data(), text.data() + text.size());
    CHECK(found.plain == plain && found.is_ascii == is_ascii);
    const Vector<char> copy(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(plain));
    CHECK(common_bytes(text.data(), copy.data(), copy.size()) == plain);
    Vector<char> other = text;
    if (plain != text.size()) other[plain] ^= 1;
    CHECK(common_bytes(text.data(), other.data(), text.size()) == plain);
  }
}

void test_depth() {
  const auto nested = [](int levels) {
    return event_json("{\"a\":" + std::string(levels, '[') + std::string(levels, ']') + "}");
  };
  CHECK(use_json(nested(kMaxContentsDepth - 1)));
  CHECK(!use_json(nested(kMaxContentsDepth)));
  CHECK(!use_json(nested(1'000'000)));
  CHECK(!use_bytes("\x91\x94\xa1x\xa0\x01\x81\xa1" + std::string("a") + std::string(1'000'000, '\x91')));
  CHECK(
      !use_bytes(std::string("\x91\x94\xa1x\xa0\x01\x81\xa1"
                             "a\xdd\xff\xff\xff\xff",
                             14)));
}

void test_equal_keys() {
  std::mt19937_64 random(11);
  for (int round = 0; round < check::rounds(2'000); ++round) {
    const auto count = check::whole(random, 0, 120);
    const auto keys = check::whole(random, 1, 300);
    std::string contents = "{";
    std::set<std::string> names;
    std::map<std::string, std::int64_t> last;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string name = "a key with a long prefix " + std::to_string(check::whole(random, 0, keys)) + " and a long end";
      last[name] = i;
      contents += (i == 0 ? "\"" : ",\"") + name + "\":{\"" + name + "\":" + std::to_string(i) + "}";
    }
    const auto batch = read_json_events(event_json(contents + "}"));
    PackedReader reader(batch->data(), batch->data_size(), batch->contents(0).at);
    Value head;
    CHECK(reader.read(head) && head.length == last.size());
    for (const auto& [name, value] : last) CHECK(batch->field(0, FieldPath(name + "." + name)).integer == value);
  }
}

void test_groups() {
  std::mt19937_64 random(3);
  for (int round = 0; round < check::rounds(300); ++round) {
    std::string json;
    const auto count = check::whole(random, 0, 200), kinds = check::whole(random, 1, 100);
    for (std::int64_t i = 0; i < count; ++i)
      json += event_json("{\"n\":" + std::to_string(check::whole(random, 0, kinds)) + "}",
                         static_cast<int>(check::whole(random, 0, 500)));
    const EventRows view = view_of(read_json_events(json));
    const EventGroups groups = group_by(one_group(view), "n");
    std::map<std::int64_t, std::uint64_t> expected;
    for (const std::uint32_t row : view.rows) ++expected[view.batch->field(row, FieldPath("n")).integer];
    const auto counts = count_rows(groups);
    CHECK(groups.count == expected.size());
    for (std::uint32_t group = 0; group < groups.count; ++group)
      CHECK(counts[group] == expected[groups.keys[0].values[group].integer]);
    const auto size_ms = check::whole(random, 1, 60), every_ms = check::whole(random, 1, size_ms);
    const EventGroups windows = split_by_window(one_group(view), WindowKind::sliding, size_ms, every_ms, 5);
    for (std::size_t i = 0; i < windows.rows.size(); ++i) {
      const std::int64_t ts_ms = view.batch->ts_ms(windows.rows[i]);
      const std::int64_t start_ms = windows.keys[0].values[windows.groups[i]].integer;
      CHECK(start_ms <= ts_ms && ts_ms < windows.keys[1].values[windows.groups[i]].integer);
      CHECK((start_ms - 5) % every_ms == 0);
    }
  }
}

void test_numbers() {
  const auto view =
      view_of(read_json_events(event_json("{\"n\":9223372036854775807}") + event_json("{\"n\":18446744073709551615}") +
                               event_json("{\"n\":-9223372036854775808}") + event_json("{\"n\":1e400}")));
  const EventGroups all = one_group(view);
  Vector<Value> values = view.batch->fields(view.rows, FieldPath("n"), "n");
  CHECK(extremes(all, values, true)[0].kind == Kind::real);
  CHECK(extremes(all, values, false)[0].integer == INT64_MIN);
  values.pop_back();
  EventGroups first_three = all;
  first_three.rows.pop_back();
  first_three.groups.pop_back();
  CHECK(sums(first_three, values)[0].whole == static_cast<__int128>(UINT64_MAX) - 1);
  Value nan, one = integer_value(1);
  nan.kind = Kind::real;
  nan.real = std::numeric_limits<double>::quiet_NaN();
  Vector<Value> with_nan{nan, one, nan, one};
  CHECK(spread_of(with_nan).quartiles[0].integer == 1);
  CHECK(compare_numbers(nan, one) == 2 && compare_numbers(one, nan) == 2);
}

void test_utf8() {
  CHECK(is_utf8(""));
  CHECK(is_utf8("ascii \x7f and \xc3\xa9 \xe4\xb8\xad \xed\x9f\xbf \xee\x80\x80 \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"));
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe4\xb8", "\xf0\x9f\x98", "\xc3\xc3", "\xe4\xb8x"})
    for (std::size_t before = 0; before < 20; ++before)  // whole words of ASCII before it, and parts of one
      for (std::size_t after : {0, 1, 9}) {
        std::string text = std::string(before, 'a') + bad + std::string(after, 'b');
        const Vector<char> copy(text.begin(), text.end());  // exact size: no byte behind it
        CHECK(find_invalid_utf8({copy.data(), copy.size()}) == before);
      }
}

void test_writer() {
  for (const std::size_t most : {std::size_t{0}, std::size_t{15}, std::size_t{16}, std::size_t{65535}, std::size_t{65536}})
    for (const std::size_t items : {std::size_t{0}, std::size_t{15}, std::size_t{16}, std::size_t{65535}, std::size_t{65536}}) {
      if (items > most) continue;
      PackedWriter writer;
      const auto start = writer.mark();
      writer.open(most);
      for (std::size_t i = 0; i < items; ++i) writer.integer(static_cast<std::int64_t>(i % 100));
      const auto kept = writer.mark();
      writer.open(3);
      writer.text("removed");
      writer.undo(kept);
      writer.close_list(start, most, items);
      writer.nil();  // stands behind the list
      PackedReader reader(reinterpret_cast<const std::uint8_t*>(writer.bytes().data()), writer.bytes().size());
      Value list, item;
      CHECK(reader.read(list) && list.kind == Kind::list && list.length == items);
      CHECK(reader.at() == (items < 16 ? 1u : items <= 0xffff ? 3u : 5u));
      for (std::size_t i = 0; i < items; ++i) CHECK(reader.read(item) && item.integer == static_cast<std::int64_t>(i % 100));
      CHECK(reader.read(item) && item.kind == Kind::nil && reader.left() == 0);
      CHECK(writer.mark().level == 0);
    }
  PackedWriter empty;
  empty.text({});
  CHECK(empty.bytes() == "\xa0");
  PackedWriter deep;
  for (int level = 0; level < kMaxDepth; ++level) deep.open(1);
  CHECK(deep.depth() == kMaxDepth);
  const auto is_refused = [](auto write) {
    try {
      write();
      return false;
    } catch (const EventFault&) {
      return true;
    }
  };
  CHECK(is_refused([&] { deep.open(1); }));
  PackedWriter large;
  CHECK(is_refused([&] { large.binary(std::string(kMaxEncodedBytes, 'x')); }));
  CHECK(is_refused([&] {
    for (;;) large.text("more");
  }));
}

void test_scratch() {
  Scratch scratch;
  std::vector<std::span<std::uint64_t>> taken;
  for (std::size_t size = 0; size < 200; ++size) {
    taken.push_back(scratch.take<std::uint64_t>(size * size % 3000));
    std::fill(taken.back().begin(), taken.back().end(), size);
    const std::span<char> odd = scratch.take<char>(size % 7);
    std::fill(odd.begin(), odd.end(), 'x');
  }
  for (std::size_t size = 0; size < taken.size(); ++size)
    for (const std::uint64_t item : taken[size]) CHECK(item == size);
  for (const Value& value : scratch.take<Value>(100)) CHECK(value.kind == Kind::missing && value.length == 0);
}

}  // namespace

int main() {
  test_utf8();
  test_writer();
  test_scratch();
  test_damage();
  test_scan<WordScan>();
  test_scan<TextScan>();
  test_depth();
  test_equal_keys();
  test_groups();
  test_numbers();
  return check::failures == 0 ? 0 : 1;
}
