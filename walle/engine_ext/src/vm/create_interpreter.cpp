#include "vm/create_interpreter.h"

#include <mutex>
#include <new>
#include <utility>

namespace walle::vm {

namespace {

constexpr const char* kNoModule = "-";  // a name that is never imported

// Never destroyed, because other threads may import while the process exits.
struct Creation {
  std::mutex mutex;  // one interpreter at a time
  std::string empty_code;
  // Once PyImport_FrozenModules points to this table, it stays there, and only the name in it changes, because any thread may be
  // searching it.
  _frozen modules[2] = {{kNoModule, nullptr, 0, 0}, {nullptr, nullptr, 0, 0}};
};

Creation& creation() {
  static Creation& instance = *new Creation();
  return instance;
}

// Makes a new interpreter's import of `site` find the empty module, for as long as this object lives.
class WithoutSite {
 public:
  explicit WithoutSite(Creation& creation) : creation_(creation) { creation_.modules[0].name = "site"; }
  ~WithoutSite() { creation_.modules[0].name = kNoModule; }
  WithoutSite(const WithoutSite&) = delete;
  WithoutSite& operator=(const WithoutSite&) = delete;

 private:
  Creation& creation_;
};

}  // namespace

void set_empty_site(std::string code) {
  Creation& shared = creation();
  const std::lock_guard lock(shared.mutex);
  if (!shared.empty_code.empty() || PyImport_FrozenModules != nullptr) return;  // another library's table is not replaced
  shared.empty_code = std::move(code);
  shared.modules[0].code = reinterpret_cast<const unsigned char*>(shared.empty_code.data());
  shared.modules[0].size = static_cast<int>(shared.empty_code.size());
  PyImport_FrozenModules = shared.modules;
}

PyThreadState* create_interpreter(const std::function<bool()>& is_needed, std::string& error) {
  PyInterpreterConfig config = {};
  config.use_main_obmalloc = 0;
  config.allow_fork = 0;
  config.allow_exec = 0;
  config.allow_threads = 0;
  config.allow_daemon_threads = 0;
  config.check_multi_interp_extensions = 1;
  config.gil = PyInterpreterConfig_OWN_GIL;
  Creation& shared = creation();
  const std::lock_guard lock(shared.mutex);
  if (!is_needed()) {
    error = "the VM is closed";
    return nullptr;
  }
  const WithoutSite without_site(shared);
  PyThreadState* state = nullptr;
  const PyStatus status = Py_NewInterpreterFromConfig(&state, &config);
  if (PyStatus_Exception(status)) {
    error = std::string("the interpreter could not be created: ") + (status.err_msg ? status.err_msg : "unknown reason");
    return nullptr;
  }
  return state;
}

void reset_creation_after_fork() {
  Creation& shared = creation();
  new (&shared.mutex) std::mutex();
  shared.modules[0].name = kNoModule;
}

}  // namespace walle::vm
