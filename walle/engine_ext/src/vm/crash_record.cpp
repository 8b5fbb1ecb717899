#include "vm/crash_record.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <new>

#include "vm/shared_memory.h"

namespace walle::vm {

namespace {

constexpr std::size_t kEntries = 64;  // more VMs at once than any device has
constexpr std::size_t kEntriesBytes = kEntries * sizeof(PlaceEntry);
// Of memory of the kernel, which counts each of faulthandler's small writes as about 700 bytes: 60 frames, or 30 where the
// system's limit (net.core.wmem_max, here 208 KB as nearly everywhere) is half of it.
constexpr int kFramesMemoryBytes = 208 << 10;
constexpr std::size_t kMaxFramesBytes = std::size_t{512} << 10;  // limit of what is read
constexpr std::size_t kSignalStackBytes = std::size_t{64} << 10;

template <std::size_t N>
void set_text(char (&field)[N], std::string_view text) noexcept {
  field[0] = 0;  // empty while it changes
  const std::size_t size = std::min(text.size(), N - 1);
  field[size] = 0;
  if (size == 0) return;
  std::memcpy(field + 1, text.data() + 1, size - 1);
  field[0] = text[0];
}

template <std::size_t N>
std::string get_text(const char (&field)[N]) {
  return {field, strnlen(field, N)};
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// Returns "file:line in function" of a line of faulthandler's, `  File "main.py", line 3 in run`, where the file is one of
// `files`. At most as long as the place in an entry: the rest of a line may be anything.
std::string own_place(std::string_view line, const std::unordered_set<std::string>& files) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ";
  if (!line.starts_with(kFile)) return "";
  line.remove_prefix(kFile.size());
  const std::size_t name_end = line.find(kLine);
  if (name_end == std::string_view::npos) return "";
  std::string place(line.substr(0, name_end));
  if (!files.contains(place)) return "";
  line.remove_prefix(name_end + kLine.size());
  place.append(":").append(line);
  if (place.size() >= sizeof PlaceEntry::place) place.resize(sizeof PlaceEntry::place - 1);
  return place;
}

// Returns the innermost frame of the thread's in the task's files, where faulthandler wrote of it as the thread that crashed.
std::string crashed_place(std::string_view trace, std::uint64_t thread, const std::unordered_set<std::string>& files) {
  constexpr std::string_view kThread = "Current thread 0x";
  while (!trace.empty()) {
    const std::string_view line = next_line(trace);
    if (!line.starts_with(kThread)) continue;
    std::uint64_t found = 0;
    std::from_chars(line.data() + kThread.size(), line.data() + line.size(), found, 16);
    if (found != thread) continue;
    for (;;) {  // frames of this thread, innermost first
      const std::string_view frame = next_line(trace);
      if (!frame.starts_with("  ")) return "";
      if (std::string place = own_place(frame, files); !place.empty()) return place;
    }
  }
  return "";
}

bool read_whole(const Descriptor& memory, char* out, std::size_t size, off_t offset) {
  while (size > 0) {
    const ssize_t got = pread(memory.get(), out, size, offset);
    if (got <= 0) return false;
    out += got;
    offset += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

struct SignalStack {
  std::unique_ptr<char[]> memory{new (std::nothrow) char[kSignalStackBytes]};

  SignalStack() noexcept {
    if (memory == nullptr) return;
    stack_t stack = {};
    stack.ss_sp = memory.get();
    stack.ss_size = kSignalStackBytes;
    if (sigaltstack(&stack, nullptr) != 0) memory.reset();
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack() {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    none.ss_size = kSignalStackBytes;
    sigaltstack(&none, nullptr);
  }
};

}  // namespace

void PlaceEntry::enter_phase(std::string_view name) noexcept {
  set_text(place, "");
  set_text(phase, name);
}

void PlaceEntry::set_place(std::string_view text) noexcept { set_text(place, text); }

std::pair<CrashRecordPort, CrashRecordPort> create_crash_record() noexcept {
  CrashRecordPort device, host;
  try {
    device.memory = create_shared_bytes("walle-crash-record", kEntriesBytes);
  } catch (const std::exception&) {
    return {CrashRecordPort(), CrashRecordPort()};
  }
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return {CrashRecordPort(), CrashRecordPort()};
  device.frames = above_standard(Descriptor(ends[0]));
  host.frames = above_standard(Descriptor(ends[1]));
  host.memory = Descriptor(fcntl(device.memory.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const bool is_whole = device && host && fcntl(device.frames.get(), F_SETFD, FD_CLOEXEC) == 0 &&
                        fcntl(host.frames.get(), F_SETFD, FD_CLOEXEC) == 0 &&
                        // A crashing thread does not wait: what finds no room is lost. The host's end has nothing to read.
                        fcntl(host.frames.get(), F_SETFL, O_NONBLOCK) == 0 && shutdown(device.frames.get(), SHUT_WR) == 0 &&
                        setsockopt(host.frames.get(), SOL_SOCKET, SO_SNDBUF, &kFramesMemoryBytes, sizeof kFramesMemoryBytes) == 0;
  if (!is_whole) return {CrashRecordPort(), CrashRecordPort()};
  return {std::move(device), std::move(host)};
}

std::string receive_frames(const CrashRecordPort& record) {
  std::string frames;
  if (!record) return frames;
  std::array<char, 16 << 10> part;
  while (frames.size() < kMaxFramesBytes) {
    const ssize_t got = recv(record.frames.get(), part.data(), part.size(), MSG_DONTWAIT);  // descriptors in it are closed
    if (got <= 0) break;
    frames.append(part.data(), static_cast<std::size_t>(got));
  }
  return frames;
}

TaskPlace read_place(const CrashRecordPort& record, std::string_view frames, std::uint64_t vm_id,
                     const std::unordered_set<std::string>& files) {
  if (!record) return {};
  std::array<PlaceEntry, kEntries> entries;
  if (!read_whole(record.memory, reinterpret_cast<char*>(entries.data()), kEntriesBytes, 0)) return {};
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const PlaceEntry& one) { return one.vm_id == vm_id; });
  if (found == entries.end()) return {};
  std::string place = crashed_place(frames, found->thread, files);
  return {get_text(found->phase), place.empty() ? get_text(found->place) : std::move(place)};
}

CrashRecord::CrashRecord(CrashRecordPort port) : frames_(std::move(port.frames)) {
  const Descriptor memory = std::move(port.memory);  // closed here: by its path a task could open the memory again, and read it
  void* address = mmap(nullptr, kEntriesBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address != MAP_FAILED) entries_ = static_cast<PlaceEntry*>(address);
}

CrashRecord::~CrashRecord() {
  if (entries_ != nullptr) munmap(entries_, kEntriesBytes);
}

PlaceEntry* CrashRecord::take(std::uint64_t vm_id) noexcept {
  if (entries_ == nullptr) return nullptr;
  const auto found = std::find_if(entries_, entries_ + kEntries, [](const PlaceEntry& one) { return one.vm_id == 0; });
  if (found == entries_ + kEntries) return nullptr;
  *found = PlaceEntry{.vm_id = vm_id, .thread = 0, .phase = {}, .place = {}};
  return found;
}

void CrashRecord::release(std::uint64_t vm_id) noexcept {
  if (entries_ == nullptr) return;
  const auto found = std::find_if(entries_, entries_ + kEntries, [&](const PlaceEntry& one) { return one.vm_id == vm_id; });
  if (found != entries_ + kEntries) found->vm_id = 0;
}

void use_signal_stack() noexcept { static thread_local const SignalStack stack; }

}  // namespace walle::vm
