#include "vm/birth.h"

#include <mutex>
#include <new>
#include <utility>

namespace walle::vm {

namespace {

constexpr const char* kNoModule = "-";  // no name that anyone imports

// Never destroyed, as other threads may import while the process exits.
struct Birth {
  std::mutex one_at_a_time;
  std::string empty_code;
  // The table of PyImport_FrozenModules stays for good once it is set, and only the name in it changes, because any thread
  // may be searching it.
  _frozen modules[2] = {{kNoModule, nullptr, 0, 0}, {nullptr, nullptr, 0, 0}};
};

Birth& birth() {
  static Birth& one = *new Birth();
  return one;
}

// For as long as it lives, a new interpreter's import of `site` finds the empty module.
class WithoutSite {
 public:
  explicit WithoutSite(Birth& the) : the_(the) { the_.modules[0].name = "site"; }
  ~WithoutSite() { the_.modules[0].name = kNoModule; }
  WithoutSite(const WithoutSite&) = delete;
  WithoutSite& operator=(const WithoutSite&) = delete;

 private:
  Birth& the_;
};

}  // namespace

void set_empty_site(std::string code) {
  Birth& the = birth();
  const std::lock_guard lock(the.one_at_a_time);
  if (!the.empty_code.empty() || PyImport_FrozenModules != nullptr) return;  // a table of someone else's is left alone
  the.empty_code = std::move(code);
  the.modules[0].code = reinterpret_cast<const unsigned char*>(the.empty_code.data());
  the.modules[0].size = static_cast<int>(the.empty_code.size());
  PyImport_FrozenModules = the.modules;
}

PyThreadState* make_interpreter(const std::function<bool()>& wanted, std::string& error) {
  PyInterpreterConfig config = {};
  config.use_main_obmalloc = 0;
  config.allow_fork = 0;
  config.allow_exec = 0;
  config.allow_threads = 0;
  config.allow_daemon_threads = 0;
  config.check_multi_interp_extensions = 1;
  config.gil = PyInterpreterConfig_OWN_GIL;
  Birth& the = birth();
  const std::lock_guard lock(the.one_at_a_time);
  if (!wanted()) {
    error = "the VM is closed";
    return nullptr;
  }
  const WithoutSite without_site(the);
  PyThreadState* state = nullptr;
  const PyStatus status = Py_NewInterpreterFromConfig(&state, &config);
  if (PyStatus_Exception(status)) {
    error = std::string("no interpreter could be made: ") + (status.err_msg ? status.err_msg : "unknown reason");
    return nullptr;
  }
  return state;
}

void birth_after_fork() {
  Birth& the = birth();
  new (&the.one_at_a_time) std::mutex();
  the.modules[0].name = kNoModule;
}

}  // namespace walle::vm
