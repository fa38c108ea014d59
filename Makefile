# Sandpiper: build, set-up and tests. `make help` lists the targets.

SANDPIPER := 0.1.0
CC ?= cc
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
Q := $(if $(V),,@)
# Variant: release (build/sandpiper), test (SCRIPTED driver in it), or what SANITIZE gives.
SANITIZE ?=
TEST_BUILD ?=
# Node.js of build/deps/bin, where `make deps` had to bring one.
export PATH := $(CURDIR)/build/deps/bin:$(PATH)
BUILD := build/$(if $(SANITIZE),san,$(if $(TEST_BUILD),test,release))$(if $(filter clang,$(notdir $(CC))),-clang)

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla -Werror
OPT ?= -O2 -g
HARDEN := $(if $(SANITIZE),,-D_FORTIFY_SOURCE=2) -fstack-protector-strong -fPIE
PKGS := jansson libcurl
CPPFLAGS_ALL = -D_GNU_SOURCE -Iinclude -I$(BUILD)/gen -DSANDPIPER_VERSION='"$(SANDPIPER)"' \
	$(if $(TEST_BUILD)$(SANITIZE),-DSANDPIPER_TEST_BUILD) $(CPPFLAGS)
CFLAGS_ALL = -std=c11 $(WARN) $(OPT) $(HARDEN) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all) $(CFLAGS)
LDFLAGS_ALL = -pie -Wl,-z,relro,-z,now $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)
# TLS to Redis, where hiredis is 1.0 or later (not Debian 12's).
ifeq ($(shell pkg-config --exists hiredis_ssl 2>/dev/null && echo yes),yes)
CPPFLAGS_ALL += -DSANDPIPER_REDIS_TLS
LDLIBS_TLS := -lhiredis_ssl -lssl -lcrypto
endif
LDLIBS_ALL = $(LDLIBS_TLS) -lhiredis -lcurl -ljansson -lmicrohttpd -lev -lm $(LDLIBS)

SOURCES := $(sort $(wildcard common/*.c) $(shell find worker -name '*.c'))
LIB_SOURCES := $(filter-out worker/main.c,$(SOURCES))
ifeq ($(TEST_BUILD)$(SANITIZE),)
LIB_SOURCES := $(filter-out worker/drivers/scripted%.c,$(LIB_SOURCES))
endif
LIB_OBJECTS := $(LIB_SOURCES:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/gen/embedded.o $(BUILD)/obj/gen/scripts.o
HEADERS := $(shell find include -name '*.h')
UNIT_SOURCES := $(sort $(wildcard tests/unit/test_*.c))
ifeq ($(LDLIBS_TLS),)
# Without TLS in hiredis there is nothing to test but the refusal, which test_redis_url does.
UNIT_SOURCES := $(filter-out tests/unit/test_redis_tls.c,$(UNIT_SOURCES))
endif
UNIT_PROGRAMS := $(UNIT_SOURCES:tests/unit/%.c=$(BUILD)/unit/%)

.PHONY: all
all: $(BUILD)/sandpiper ## Build the worker (build/release/sandpiper)

$(BUILD)/sandpiper: $(BUILD)/obj/worker/main.o $(BUILD)/libsandpiper.a
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LDLIBS_ALL)

$(BUILD)/libsandpiper.a: $(LIB_OBJECTS)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

LOCAL_HOST := worker/drivers/local/host
PREPARE := worker/drivers/kernel/prepare.py

# The folder is there for the file that is removed.
$(BUILD)/gen/embedded.c: worker/embed.py $(LOCAL_HOST) $(wildcard $(LOCAL_HOST)/*.py) $(PREPARE)
	@mkdir -p $(@D)
	$(Q)$(PYTHON) worker/embed.py $@ local_host_pyz=$(LOCAL_HOST) prepare_py=$(PREPARE)

# BullMQ's Lua is fetched once, by its pinned version; its hash is checked each time it is expanded.
LUA := worker/queue/lua
BULLMQ := $(shell sed -n 's/.*"version": "\(.*\)".*/\1/p' $(LUA)/bullmq.lock)
BULLMQ_TARBALL := build/deps/bullmq-$(BULLMQ).tgz

$(BULLMQ_TARBALL):
	@mkdir -p $(@D)
	$(Q)cd $(@D) && npm pack --silent bullmq@$(BULLMQ) >/dev/null

ifeq ($(wildcard $(LUA)/expanded.c),)
$(BUILD)/gen/scripts.c: $(BULLMQ_TARBALL) $(LUA)/expand.py $(LUA)/bullmq.lock $(wildcard $(LUA)/*.lua)
	@mkdir -p $(@D)
	$(Q)$(PYTHON) $(LUA)/expand.py $(LUA)/bullmq.lock $(BULLMQ_TARBALL) $(LUA) $@
else
# A source archive made by `make dist`.
$(BUILD)/gen/scripts.c: $(LUA)/expanded.c
	@mkdir -p $(@D)
	cp $< $@
endif

$(BUILD)/unit/%: tests/unit/%.c $(BUILD)/libsandpiper.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL) -MMD -MP -o $@ $< $(BUILD)/libsandpiper.a -lcmocka $(LDLIBS_ALL)

.PHONY: unit
unit: $(UNIT_PROGRAMS) ## Build and run the unit tests (cmocka)
	@set -e; for t in $(UNIT_PROGRAMS); do $$t; done

.PHONY: help
help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: deps
deps: ## Install what is missing (apt, npm), so that all else works
	@.ci/deps

.PHONY: demo
demo: deps ## The main job in one go: private Redis, worker, a tour of what it does
	@$(MAKE) --no-print-directory -s all
	@tests/demo/run

SANITIZED := SANITIZE=address,undefined
.PHONY: test
test: deps-conformance ## Everything: unit and integration tests, and both again under ASan and UBSan
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@$(MAKE) --no-print-directory -s all build-unit $(SANITIZED)
	@$(MAKE) --no-print-directory -s all build-server
	@tests/run

.PHONY: build-unit
build-unit: $(UNIT_PROGRAMS)

.PHONY: deps-conformance
deps-conformance: # deps, and what the pages and applications of tests/conformance need
	@.ci/deps conformance

.PHONY: server
server: ## Build the NestJS server (docker/server)
	@.ci/deps server
	@$(MAKE) --no-print-directory -s build-server

.PHONY: build-server
build-server: # its packages are there
	$(Q)cd docker/server && node node_modules/typescript/bin/tsc -p tsconfig.json

.PHONY: demo-web
demo-web: server ## The page in a browser: Redis, worker and server until Ctrl-C (PORT=3000)
	@$(MAKE) --no-print-directory -s all
	@exec node tests/demo/web.mjs

.PHONY: screenshots
screenshots: deps-conformance ## The pictures of README, docker/server/screenshots, made anew in Chromium
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@$(MAKE) --no-print-directory -s build-server
	@WORKER_BIN=build/test/sandpiper SCREENSHOTS=docker/server/screenshots node --test --test-name-pattern=picture tests/web/pictures.test.mjs

.PHONY: test-conformance
test-conformance: deps-conformance ## A stock BullMQ Worker and ours leave the same behind: scenario x producer
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@tests/run conformance

.PHONY: bullmq
bullmq: deps-conformance ## Another BullMQ: VERSION=6.7.1 shows what changed in its Lua, pins it, builds, runs the conformance tests
	@$(PYTHON) $(LUA)/upgrade.py "$(VERSION)"
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@tests/run conformance

.PHONY: test-chaos
test-chaos: deps ## Random faults, nothing lost: JOBS=20000 THREADS=200 REPLICAS=6 MINUTES=10 SEED=n
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@WORKER_BIN=build/test/sandpiper JOBS=$(JOBS) THREADS=$(THREADS) REPLICAS=$(REPLICAS) MINUTES=$(MINUTES) SEED=$(SEED) \
		node tests/chaos/main.mjs

.PHONY: test-chaos-planted
test-chaos-planted: deps ## The chaos suite sees three safeguards taken out: SEED=n
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@SEED=$(SEED) node tests/chaos/planted.mjs

.PHONY: valgrind
valgrind: deps ## A run of 100 jobs under valgrind: no error, nothing definitely lost
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@tests/valgrind

.PHONY: model
model: deps ## The model of the leases, checked exhaustively by spin; planted faults must be found
	@tests/model/run

.PHONY: smoke-e2b
smoke-e2b: deps ## The life of an E2B sandbox step by step: on E2B with E2B_API_KEY, else on the emulator
	@$(MAKE) --no-print-directory -s all
	@node tests/e2b/smoke.mjs

.PHONY: lint
lint: ## clang-format, cppcheck, warnings of gcc and clang, settings against README
	@.ci/deps all
	@.ci/lint

.PHONY: bench
bench: deps ## Everything in README's "Measured", beside a Node Worker and the official SDK: QUICK=1 in under 2 minutes
	@$(MAKE) --no-print-directory -s all TEST_BUILD=1
	@tests/bench/run

.PHONY: install
install: all ## Install the worker: DESTDIR=, PREFIX=/usr/local
	install -D -m 755 $(BUILD)/sandpiper $(DESTDIR)$(PREFIX)/bin/sandpiper
	install -D -m 644 docker/man/sandpiper.1 $(DESTDIR)$(PREFIX)/share/man/man1/sandpiper.1
	@install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|@PREFIX@|$(PREFIX)|' docker/systemd/sandpiper.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/sandpiper.service
	chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/sandpiper.service
	install -D -m 644 docker/systemd/local.conf $(DESTDIR)$(PREFIX)/share/doc/sandpiper/systemd-local.conf
	install -D -m 644 docker/grafana/sandpiper.json $(DESTDIR)$(PREFIX)/share/doc/sandpiper/grafana.json
	install -D -m 644 docker/prometheus/rules.yml $(DESTDIR)$(PREFIX)/share/doc/sandpiper/prometheus-rules.yml
	install -D -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/sandpiper/README.md
	install -D -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/sandpiper/LICENSE
	install -D -m 644 THIRD_PARTY_NOTICES $(DESTDIR)$(PREFIX)/share/doc/sandpiper/THIRD_PARTY_NOTICES

.PHONY: uninstall
uninstall: ## Remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/sandpiper $(DESTDIR)$(PREFIX)/share/man/man1/sandpiper.1 \
		$(DESTDIR)$(PREFIX)/lib/systemd/system/sandpiper.service
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/sandpiper

.PHONY: dist
dist: $(BUILD)/gen/scripts.c ## A source archive with the expanded Lua in it, for builds without npm
	@mkdir -p build/dist
	git archive --prefix=sandpiper-$(SANDPIPER)/ -o build/dist/sandpiper-$(SANDPIPER).tar HEAD
	tar --transform 's|.*/scripts.c|sandpiper-$(SANDPIPER)/worker/queue/lua/expanded.c|' -rf build/dist/sandpiper-$(SANDPIPER).tar $(BUILD)/gen/scripts.c
	gzip -f build/dist/sandpiper-$(SANDPIPER).tar

.PHONY: deb
deb: all ## A Debian package, in build/deb (dpkg-dev)
	@.ci/deb $(SANDPIPER)

.PHONY: sbom
sbom: all ## The bill of materials: build/sbom.json (CycloneDX)
	@.ci/sbom $(BUILD)/sandpiper $(SANDPIPER) build/sbom.json

.PHONY: test-debian13
test-debian13: deps ## docker/Dockerfile's stages in Debian 13 trees (debootstrap, as root), its images run, tests inside
	@tests/debian13/run

.PHONY: test-cgroup2
test-cgroup2: deps ## The systemd unit, and LOCAL's control groups (v2), in a virtual machine (QEMU, x86-64; some minutes)
	@tests/cgroup2/run

.PHONY: clean
clean: ## Remove what was built (fetched packages stay in build/deps)
	rm -rf build/release* build/test* build/san* build/fuzz build/demo build/dist build/deb build/cgroup2 build/sbom.json

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

FUZZ_SECONDS ?= 20
FUZZ_PROGRAMS := $(patsubst tests/fuzz/fuzz_%.c,build/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))

build/fuzz/%: tests/fuzz/fuzz_%.c $(wildcard common/*.c) $(HEADERS)
	@mkdir -p $(@D)
	clang $(CPPFLAGS_ALL) -std=c11 $(WARN) -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-o $@ $(filter %.c,$^) $(LDLIBS_ALL)

.PHONY: fuzz
fuzz: $(FUZZ_PROGRAMS) ## Fuzz the parsers, FUZZ_SECONDS=20 each (clang)
	@set -e; for t in $(notdir $(FUZZ_PROGRAMS)); do echo "fuzz $$t"; mkdir -p build/fuzz/corpus/$$t; \
		build/fuzz/$$t -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus/$$t tests/fuzz/seeds/$$t; done
