# Walle's chores. `make` lists them; `make demo` and `make test` set everything up first.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
NATIVE := CMakeLists.txt $(shell find walle/engine_ext/src -type f 2>/dev/null)
TEST_ARGS ?=
# What ccache keeps serves every checkout on this machine.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
# ninja alone starts two more compilers than there are cores, which then contend for the caches.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell getconf _NPROCESSORS_ONLN)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-python test-night test-cpp test-security test-big test-upgrade test-figures test-asan test-tsan test-neon numpy-suite fuzz fuzz-frames fuzz-graphs docs pictures soak-vm soak-faults soak-reconnect soak-database soak-cluster soak-livestream loadtest wheel lint format figures clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml scripts/setup.sh $(NATIVE)
	@sh scripts/setup.sh $(VENV)
	@touch $(STAMP)

setup: $(STAMP)  ## make .venv: Python packages, CMake, ninja, and the native core

demo: $(STAMP)  ## ship the IPV task to a fleet of devices on this machine and watch its features come back
	@$(BIN)/walle demo $(DEMO_ARGS)

# The Python tests wait for part of their time: meanwhile the C++ tests are built, at a lower priority.
test: $(STAMP)  ## pass the tests of every change, C++ ones under ASan and UBSan (at most twelve minutes on two idle cores)
	@$(MAKE) --no-print-directory --jobs 2 --keep-going test-python test-cpp

# Compiling the tests takes half of the time of collecting them: the bytecode is kept, also where PYTHONDONTWRITEBYTECODE is set.
PYTEST := MAKEFLAGS= env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

# In a new checkout one process compiles the tests; otherwise each worker would compile all of them.
test-python: $(STAMP)  ## pass the Python tests of every change, or those of TEST_ARGS
	@$(if $(TEST_ARGS),true,test -d tests/__pycache__ || $(PYTEST) --collect-only -q > /dev/null || true)
	@$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not night" --cpu-limit=3 --second-run=3 --examples=0.3 $(TEST_ARGS)

test-night: $(STAMP) test-cpp  ## pass the tests that take long: whole systems, kills, clusters, load, memory, all examples of properties (about 25 minutes)
	@$(PYTEST) -o cache_dir=.pytest_cache/night -n 2 --dist loadfile -m "night or hypothesis" $(TEST_ARGS)
	@$(BIN)/ctest --test-dir build/sanitize --output-on-failure --parallel $(CMAKE_BUILD_PARALLEL_LEVEL)

test-cpp: build/sanitize/.passed  ## build the C++ tests with sanitizers and run them, if a C++ source is newer

# Without MAKEFLAGS, by which ninja would take its number of jobs from `make test`.
# The stamp is as old as the sources that were read: one that is saved while the tests run is tested next time.
build/sanitize/.passed: Makefile $(NATIVE) $(shell find tests/cpp tests/fuzz -type f -not -name '*.py*') | $(STAMP)
	@mkdir -p build/sanitize && touch build/sanitize/.begun
	@$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DWALLE_MODULE=OFF -DWALLE_TESTS=ON -DWALLE_SANITIZE=address,undefined > build/sanitize.log 2>&1 || { cat build/sanitize.log; exit 1; }
	@MAKEFLAGS= nice -n 5 $(BIN)/cmake --build build/sanitize > build/sanitize.log 2>&1 || { cat build/sanitize.log; exit 1; }
	@WALLE_FEW_ROUNDS=1 nice -n 5 $(BIN)/ctest --test-dir build/sanitize --output-on-failure --parallel $(CMAKE_BUILD_PARALLEL_LEVEL)
	@mv build/sanitize/.begun $@

# What takes longer than `make test` allows. Each program ends with an error where an attack gets through.
test-security: $(STAMP)  ## attack a real cloud, then VMs by hostile tasks and the tunnel by malformed frames, and the converter by ONNX files (about twelve minutes)
	@$(PYTEST) -o cache_dir=.pytest_cache/security tests/security tests/engine_ext/vm/test_hostile.py tests/engine_ext/vm/test_host_sandbox.py
	@$(BIN)/python -m tests.sim.hostile
	@$(BIN)/python -m tests.sim.hostile --seconds 120 --host
	@$(BIN)/python -m tests.fuzz.frames --seconds 120 --seed 1
	@$(BIN)/python -m tests.sim.hostile_onnx --times 20

test-big: $(STAMP)  ## take a model of 1.2 GB from a push to a device and its next version, and measure memory (minutes, 25 GB of disk)
	@$(BIN)/python -m tests.sim.big_model $(BIG_ARGS)

test-upgrade: $(STAMP)  ## take another version of Walle on a cluster while devices work, with one and two edges a node (minutes)
	@$(BIN)/python -m tests.sim.upgrades

test-figures: $(STAMP)  ## run each figure's command with small sizes as a user does, with nothing fetched and with the real data (about twelve minutes)
	@$(PYTEST) -o cache_dir=.pytest_cache/figures tests/night/every_figure.py $(TEST_ARGS)

test-neon: $(STAMP)  ## build the C++ tests for 64-bit ARM and run them under QEMU
	@$(BIN)/cmake -S . -B build/neon -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DWALLE_MODULE=OFF -DWALLE_TESTS=ON > build/neon.log 2>&1 || { cat build/neon.log; exit 1; }
	@$(BIN)/cmake --build build/neon > build/neon.log 2>&1 || { cat build/neon.log; exit 1; }
	@$(BIN)/ctest --test-dir build/neon --output-on-failure

test-asan: $(STAMP)  ## run the engine's Python tests on a module built with ASan and UBSan, then VMs by the thousand (about fifteen minutes)
	@CMAKE=$(BIN)/cmake PYTHON=$(abspath $(BIN)/python) sh scripts/test_sanitized.sh asan $(TEST_ARGS)

test-tsan: $(STAMP)  ## run the VMs' tests on a module built with TSan, then VMs by the thousand (about ten minutes)
	@CMAKE=$(BIN)/cmake PYTHON=$(abspath $(BIN)/python) sh scripts/test_sanitized.sh tsan $(TEST_ARGS)

numpy-suite: $(STAMP)  ## run NumPy's own tests on walle.np, and write build/numpy-suite.md (about ten minutes)
	@$(BIN)/python -m tests.numpy_suite.run --write $(TEST_ARGS)

fuzz: $(STAMP)  ## fuzz the model reader, planner and kernels for FUZZ_SECONDS (1800); needs clang with libFuzzer
	@CMAKE=$(BIN)/cmake PYTHON=$(abspath $(BIN)/python) sh tests/fuzz/fuzz.sh $(FUZZ_SECONDS)

fuzz-frames: $(STAMP)  ## fuzz the tunnel's decoder, server and client for FUZZ_SECONDS (1800)
	@$(BIN)/python -m tests.fuzz.frames --seconds $(or $(FUZZ_SECONDS),1800) --seed $(or $(FUZZ_SEED),1)

fuzz-graphs: $(STAMP)  ## compare FUZZ_GRAPHS (50,000) random ONNX graphs with ONNX Runtime, and shrink those that differ (about 25 minutes)
	@$(BIN)/python -m tests.engine_ext.random_graphs.campaign --graphs $(or $(FUZZ_GRAPHS),50000) --seed $(or $(FUZZ_SEED),1)

wheel: $(STAMP)  ## build wheel, its bill of materials and sdist into dist/, and test both packages in empty environments
	@PYTHON=$(abspath $(BIN)/python) sh scripts/test_wheel.sh

lint: $(STAMP)  ## ruff, mypy, import-linter, C++ include directions, clang-format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/include_layers.py
	@$(BIN)/python scripts/plain_words.py
	@find walle tests \( -name '*.cpp' -o -name '*.h' -o -name '*.inc' \) -print0 | xargs -0 $(BIN)/clang-format --dry-run --Werror

format: $(STAMP)  ## rewrite sources as lint wants them
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@find walle tests \( -name '*.cpp' -o -name '*.h' -o -name '*.inc' \) -print0 | xargs -0 $(BIN)/clang-format -i

docs: $(STAMP)  ## write the documentation site to build/docs; it works without a server and the internet
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/docs && echo "build/docs/index.html"

pictures: $(STAMP)  ## draw the pictures of a demo run and of the dashboard again (needs chromium)
	@$(BIN)/python scripts/demo_picture.py
	@$(BIN)/python -m tests.dashboard.pictures

soak-vm: $(STAMP)  ## ten minutes of hostile tasks in one process, ten in a VM host, 2,000 stopped imports, and 10,000 loads and unloads of a task, in a process and in a Ray actor
	@$(BIN)/python -m tests.sim.hostile --seconds 600
	@$(BIN)/python -m tests.sim.hostile --seconds 600 --host
	@$(BIN)/python -m tests.sim.stopped_imports --times 2000
	@$(BIN)/python -m tests.sim.vm_cycles --times 10000
	@$(BIN)/python -m tests.sim.vm_cycles --times 10000 --ray

soak-faults: $(STAMP)  ## 2,000 kills, cut links, rollbacks, cut logs, full disks and flipped bits at random (about six minutes)
	@$(BIN)/python -m tests.sim.faults $(FAULT_ARGS)

soak-reconnect: $(STAMP)  ## 5,000 devices that lose their tunnel and come back at once with full windows (some minutes; needs 10,200 file descriptors)
	@$(BIN)/python -m tests.sim.mass_reconnect $(RECONNECT_ARGS)

soak-database: $(STAMP)  ## outages of 5, 20 and 60 s of a real PostgreSQL under a cloud with a device, by seven faults, and stops meanwhile (about 15 minutes; needs root for a small disk)
	@$(BIN)/python -m tests.sim.database_walk $(DATABASE_ARGS)
	@$(BIN)/python -m tests.sim.database_walk --faults fail-over --seconds 20 --stops $(DATABASE_ARGS)

soak-cluster: $(STAMP)  ## cut off, restart and lose the head of a Ray cluster of simulated machines, and cut off a node (some minutes)
	@$(BIN)/python -m tests.sim.head_walk $(CLUSTER_ARGS)

soak-livestream: $(STAMP)  ## two hours of a livestream as fast as possible (about 25 minutes); fails if memory grows or a second is missing
	@$(BIN)/python -m tests.sim.long_stream $(STREAM_ARGS)

loadtest: $(STAMP)  ## locust users that are devices, against a real cloud: uploads, releases, then both on a cluster, a minute each; fails on any wrong result
	@$(BIN)/python -m loadtest.tunnel $(LOADTEST_ARGS)
	@$(BIN)/python -m loadtest.deploy $(LOADTEST_ARGS)
	@$(BIN)/python -m loadtest.cluster --nodes 2 $(LOADTEST_ARGS)

figures: $(STAMP)  ## measure every figure that exists so far, on this machine, into out/
	@$(BIN)/walle figures

clean:  ## remove everything that setup, demo, test and figures made
	rm -rf $(VENV) build out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache walle/engine_ext/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
