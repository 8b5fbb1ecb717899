// The limit that the tunnel's server is measured against: epoll and OpenSSL in one thread, without Python.
//
// It answers the first frame of a connection with given bytes, and each later one with an Ack. With a file, it first appends the
// frames of a turn of the loop to the file and calls fdatasync once, as one transaction of SQLite does. It neither decompresses,
// nor checks, nor removes duplicates, nor bounds its memory.
//
// usage: server CERTIFICATE_AND_KEY.pem WELCOME_HEX [FILE]
// Prints its port; answers each line of standard input with {"cpu_s": ..., "resident": ...}; ends with standard input.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kHeaderBytes = 8;
constexpr unsigned char kAckKind = 4;

struct Connection {
  SSL* ssl;
  std::string unread;
  std::uint64_t frames = 0;
  std::string answers;
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string ack(std::uint64_t seq) {
  std::string frame{0, 0, 0, 8, kAckKind, 0, 0, 0};
  for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(seq >> shift);
  return frame;
}

void print_state() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](timeval at) { return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_usec) / 1e6; };
  long size = 0;
  long resident = 0;
  if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statm, "%ld %ld", &size, &resident) != 2) resident = 0;
    std::fclose(statm);
  }
  std::printf("{\"cpu_s\": %.6f, \"resident\": %ld}\n", seconds(used.ru_utime) + seconds(used.ru_stime),
              resident * sysconf(_SC_PAGESIZE));
  std::fflush(stdout);
}

// Takes the whole frames out of what was read, and notes their answers. Appends the bodies to `log` unless it is null.
void take_frames(Connection& connection, const std::string& welcome, std::string* log) {
  std::size_t at = 0;
  const std::uint64_t frames_before = connection.frames;
  const std::string& bytes = connection.unread;
  while (bytes.size() - at >= kHeaderBytes) {
    const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(bytes[at + i])); };
    const std::size_t end = at + kHeaderBytes + (byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3));
    if (bytes.size() < end) break;
    if (connection.frames == 0)
      connection.answers += welcome;
    else if (log != nullptr)
      log->append(bytes, at, end - at);
    ++connection.frames;
    at = end;
  }
  connection.unread.erase(0, at);
  // The first frame is the Hello; an Ack covers all uploads before it.
  if (connection.frames > 1 && connection.frames > frames_before) connection.answers += ack(connection.frames - 1);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return std::fputs("usage: server CERTIFICATE_AND_KEY.pem WELCOME_HEX [FILE]\n", stderr), 2;
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_use_certificate_chain_file(context, arguments[1]) != 1 ||
      SSL_CTX_use_PrivateKey_file(context, arguments[1], SSL_FILETYPE_PEM) != 1)
    return std::fputs("the certificate or its key cannot be read\n", stderr), 1;
  const std::string welcome = from_hex(arguments[2]);
  const int file = count > 3 ? open(arguments[3], O_CREAT | O_WRONLY | O_APPEND, 0600) : -1;
  if (count > 3 && file < 0) fail(arguments[3]);

  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listening, reinterpret_cast<sockaddr*>(&address), length) < 0 || listen(listening, 4096) < 0) fail("listen");
  getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);

  const int events = epoll_create1(0);
  const auto watch = [&](int descriptor) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    epoll_ctl(events, EPOLL_CTL_ADD, descriptor, &event);
  };
  watch(listening);
  watch(STDIN_FILENO);
  std::unordered_map<int, Connection> connections;
  std::vector<epoll_event> ready(512);
  std::vector<int> answering;
  std::string log;
  std::vector<char> buffer(256 << 10);
  while (true) {
    const int found = epoll_wait(events, ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < found; ++i) {
      const int descriptor = ready[static_cast<std::size_t>(i)].data.fd;
      if (descriptor == STDIN_FILENO) {
        if (read(STDIN_FILENO, buffer.data(), buffer.size()) <= 0) return 0;
        print_state();
        continue;
      }
      if (descriptor == listening) {
        for (int accepted; (accepted = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK)) >= 0; watch(accepted)) {
          const int on = 1;
          setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
          SSL* ssl = SSL_new(context);
          SSL_set_fd(ssl, accepted);
          SSL_set_accept_state(ssl);
          connections[accepted] = Connection{ssl, {}, 0, {}};
        }
        continue;
      }
      Connection& connection = connections.at(descriptor);
      int got = 0;
      ERR_clear_error();
      while ((got = SSL_read(connection.ssl, buffer.data(), static_cast<int>(buffer.size()))) > 0)
        connection.unread.append(buffer.data(), static_cast<std::size_t>(got));
      if (SSL_get_error(connection.ssl, got) != SSL_ERROR_WANT_READ) {
        SSL_free(connection.ssl);
        close(descriptor);
        connections.erase(descriptor);
        continue;
      }
      take_frames(connection, welcome, file < 0 ? nullptr : &log);
      if (!connection.answers.empty()) answering.push_back(descriptor);
    }
    if (!log.empty()) {
      if (write(file, log.data(), log.size()) != static_cast<ssize_t>(log.size()) || fdatasync(file) < 0) fail("write");
      log.clear();
    }
    for (const int descriptor : answering) {
      Connection& connection = connections.at(descriptor);
      if (SSL_write(connection.ssl, connection.answers.data(), static_cast<int>(connection.answers.size())) <= 0) fail("send");
      connection.answers.clear();
    }
    answering.clear();
  }
}
