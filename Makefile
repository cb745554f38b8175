# The commands of lossd. Everything is built below build/, by the presets of CMakePresets.json.
.DEFAULT_GOAL := build
.PHONY: build demo test asan tsan dev cuda lint format docs bench clean

PRESET := release
BIN := build/release/bin

build:
	deploy/install-packages.sh build test
	cmake --preset $(PRESET) $(CMAKE_FLAGS)
	cmake --build --preset $(PRESET)

# Three processes learn from real text, with the losses computed by a server.
demo:
	deploy/install-packages.sh build test
	cmake --preset $(PRESET) $(CMAKE_FLAGS)
	cmake --build --preset $(PRESET) --target lossd lossctl lossd_demo
	$(BIN)/lossd_demo

# All tests that this machine can run; those that need a GPU or torch say so when they are skipped.
test: build
	deploy/install-packages.sh python lint
	ctest --preset $(PRESET) -j 2 --timeout 300

# The thread sanitizer sees races that are none inside Debian's gRPC, so only the tests without it are built and run.
tsan:
	deploy/install-packages.sh build test
	cmake --preset tsan $(CMAKE_FLAGS)
	cmake --build --preset tsan --target threads_tests
	ctest --preset tsan --timeout 600

dev asan cuda:
	deploy/install-packages.sh build test
	cmake --preset $@ $(CMAKE_FLAGS)
	cmake --build --preset $@
	ctest --preset $@ -j 2 --timeout 600

lint:
	deploy/install-packages.sh build lint
	tests/lint.sh

format:
	git ls-files '*.h' '*.cc' '*.cu' '*.cuh' '*.c' | xargs clang-format-14 -i

docs: build
	$(BIN)/ops_doc build/release/generated/ops.desc > proto/OPERATIONS.md

# The CPU's products; where torch sees a GPU, lossd beside other implementations there (PEERS="--peer-path DIR ..." finds more of them).
bench: build
	$(BIN)/cpu_head_bench
	@if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then \
	  python3 tests/bench/compare.py --build build/$(PRESET) --out build/bench $(PEERS); \
	else echo "no other implementations: they need a python3 whose torch sees a GPU"; fi

clean:
	rm -rf build
