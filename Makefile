# flashplan. `make demo` and `make test` set up what they need; `make help` lists the rest.

CARGO   ?= cargo
PROFILE := release
BIN     := target/$(PROFILE)
DEMO    := target/demo
MODEL   ?= fixtures/models/oxide-dense.gguf
PROMPT  ?= \# Examples
DEMO_MEM ?= 22M
SYNTH   ?= models/mistral-7b-q4_0.gguf

# Arm under emulation: without products of bytes, with those of four, and with those of small matrices
ARM      := aarch64-unknown-linux-gnu
ARM_CPUS ?= cortex-a57 cortex-a76 max
# an own compiler that has Arm's standard library, else Debian's
ARM_RUSTC = $(shell rustc=$$(command -v rustc) && test -d "$$(rustc --print sysroot)/lib/rustlib/$(ARM)" && echo $$rustc || echo /usr/bin/rustc)

# fuzzing: libFuzzer's instruments, which a stable compiler has, too
MINUTES ?= 5
FUZZ    := target/fuzz
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1

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
.PHONY: help setup setup-arm build demo test test-arm soak fuzz check bench bench-smoke bench-offload bench-sweep bench-inmemory bench-render bench-check \
	bench-kernels synth-7b clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 12

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

build: setup ## the three programs, optimised, in target/release
	$(CARGO) build --locked --release --bins

demo: build ## profile this machine and the fixture model, plan, run
	rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(BIN)/profile --quick --model $(MODEL) --out $(DEMO)
	$(BIN)/plan --device $(DEMO)/device.toml --model $(DEMO)/model.toml --mem $(DEMO_MEM) -o $(DEMO)/plan.toml
	$(BIN)/run --plan $(DEMO)/plan.toml --prompt '$(PROMPT)' -n 100 --temp 0.6 --seed 3

# cargo builds the programs that the tests start before it runs the first of them
test: setup ## every test, the committed plans included
	$(CARGO) test --locked

soak: setup ## 10,000 tokens over many prompts through an unreliable device: none wrong, nothing grows
	$(CARGO) test --locked --release -p flashplan --lib -- --exact transformer::tests::soak::ten_thousand_tokens --ignored --nocapture

# the soak starts a process of its own, which only a kernel that knows qemu can do
# no -L for qemu: the libraries that Debian's package brings beside are then found twice, and threads never start
test-arm: setup-arm ## kernels, flash and engine on Arm, emulated by qemu; the programs built for it
	@export RUSTC=$(ARM_RUSTC) CARGO_TARGET_DIR=target/arm CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc && \
	$(CARGO) build --locked --target $(ARM) -p plans -p run -p profiler --bins && \
	for cpu in $(ARM_CPUS); do echo "== $$cpu" && \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $$cpu" \
	  $(CARGO) test --locked --target $(ARM) -p kernels --lib && \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $$cpu" \
	  $(CARGO) test --locked --target $(ARM) -p flashplan --lib -- flash:: transformer:: --skip soak || exit 1; done

fuzz: setup ## contract files from anywhere for MINUTES=5: no panic, bounded memory, what is read is written the same
	@mkdir -p $(FUZZ)/corpus && for file in plans/tests/plan.toml plans/*/*/*.toml; do \
	  cp "$$file" $(FUZZ)/corpus/"$$(printf %s "$$file" | tr / -)" || exit 1; done
	@host=$$(rustc -vV | sed -n 's/^host: //p') && \
	RUSTFLAGS='$(FUZZ_FLAGS)' $(CARGO) build --locked --release --manifest-path fixtures/fuzz/Cargo.toml --target-dir $(FUZZ) --target "$$host" && \
	$(FUZZ)/$$host/release/contracts -max_total_time=$$((60 * $(MINUTES))) -max_len=262144 -rss_limit_mb=1024 -timeout=20 \
	  -artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus

# of every benchmark: LLAMA_BENCH=file of llama.cpp's llama-bench, SAVE=1 to put results where they are committed, ROUNDS,
# CGROUP=folder or none; the cases are fixtures/bench/cases/*.toml, and a result of a changed case cannot be saved
BENCH   = $(BIN)/bench run
OPTIONS = $(if $(LLAMA_BENCH),--program llama-bench='$(LLAMA_BENCH)') $(if $(SAVE),--save) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	$(if $(CGROUP),--cgroup '$(CGROUP)') $(if $(LEVEL),--level $(LEVEL)) $(if $(TOKENS),--tokens $(TOKENS))

bench: build ## the README's table: both fixture models under several limits, predicted beside measured
	$(BENCH) oxide-dense oxide-moe --fresh $(OPTIONS)

bench-smoke: build ## a minute's check that benchmarks run from end to end
	$(BENCH) smoke --fresh $(OPTIONS)

bench-offload: build ## SYNTH (as synth-7b) out of memory, MEM=2600M: plan, ablations, floor; LLAMA_BENCH, LEVEL, TOKENS, PROMPTS
	$(BENCH) mistral-7b --model '$(SYNTH)' $(OPTIONS) $(if $(MEM),--limit $(MEM)) $(foreach length,$(PROMPTS),--prompt $(length))

bench-sweep: build ## speed against memory at LIMITS="1200M ... 5G"; SYNTH, LLAMA_BENCH, LEVEL, TOKENS
	$(BENCH) mistral-7b-sweep --model '$(SYNTH)' $(OPTIONS) $(foreach limit,$(LIMITS),--limit $(limit))

bench-inmemory: build ## models that fit in memory, sparse (SYNTH) and dense (SILU), beside LLAMA_BENCH: decoding, prompts
	$(BENCH) mistral-7b-in-memory --model '$(SYNTH)' $(OPTIONS)
	$(BENCH) mistral-7b-silu-in-memory $(if $(SILU),--model '$(SILU)') $(OPTIONS)

bench-render: build ## the tables and pictures of README.md and docs/ from committed results
	$(BIN)/bench render

bench-check: build ## which of them differ from the results, and which results are of another form of their case
	$(BIN)/bench check

bench-kernels: setup ## what the kernels reach of what this machine's memory gives
	$(CARGO) run --release --locked -q -p flashplan --example bench_kernels

synth-7b: setup ## a model of Mistral's shape with planted sparsity, 3.8 GiB, as SYNTH=file; its text is meaningless
	$(CARGO) build --locked --release -p synth
	mkdir -p $(dir $(SYNTH))
	test -e $(SYNTH) || $(BIN)/synth write mistral-7b -o $(SYNTH)

check: setup ## lints and formatting
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings

clean: ## everything that was built
	$(CARGO) clean
