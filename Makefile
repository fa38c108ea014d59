# Sandpiper: build, set-up and tests. `make help` lists the targets.

VERSION := 0.1.0
CC ?= cc
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
Q := $(if $(V),,@)
# Variant: release (build/sandpiper), test (SCRIPTED driver in it), or what SANITIZE gives.
SANITIZE ?=
TEST_BUILD ?=
BUILD := build/$(if $(SANITIZE),san,$(if $(TEST_BUILD),test,release))$(if $(filter clang,$(notdir $(CC))),-clang)

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla -Werror
OPT ?= -O2 -g
HARDEN := $(if $(SANITIZE),,-D_FORTIFY_SOURCE=2) -fstack-protector-strong -fPIE
PKGS := jansson libcurl
CPPFLAGS_ALL = -D_GNU_SOURCE -Iinclude -I$(BUILD)/gen -DSANDPIPER_VERSION='"$(VERSION)"' \
	$(if $(TEST_BUILD)$(SANITIZE),-DSANDPIPER_TEST_BUILD) $(CPPFLAGS)
CFLAGS_ALL = -std=c11 $(WARN) $(OPT) $(HARDEN) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all) $(CFLAGS)
LDFLAGS_ALL = -pie -Wl,-z,relro,-z,now $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)
LDLIBS_ALL = -lhiredis -lcurl -ljansson -lev -lm $(LDLIBS)

SOURCES := $(sort $(wildcard common/*.c) $(shell find worker -name '*.c'))
LIB_SOURCES := $(filter-out worker/main.c,$(SOURCES))
ifeq ($(TEST_BUILD)$(SANITIZE),)
LIB_SOURCES := $(filter-out worker/drivers/scripted%.c,$(LIB_SOURCES))
endif
LIB_OBJECTS := $(LIB_SOURCES:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/gen/embedded.o $(BUILD)/obj/gen/scripts.o
HEADERS := $(shell find include -name '*.h')
UNIT_SOURCES := $(sort $(wildcard tests/unit/test_*.c))
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

$(BUILD)/gen/embedded.c: worker/embed.py worker/drivers/local/host.py worker/drivers/kernel/prepare.py
	@mkdir -p $(@D)
	$(PYTHON) worker/embed.py $@ local_host_py=worker/drivers/local/host.py prepare_py=worker/drivers/kernel/prepare.py

# BullMQ's Lua is fetched once, by its pinned version; its hash is checked each time it is expanded.
LUA := worker/queue/lua
BULLMQ := $(shell sed -n 's/.*"version": "\(.*\)".*/\1/p' $(LUA)/bullmq.lock)
BULLMQ_TARBALL := build/deps/bullmq-$(BULLMQ).tgz

$(BULLMQ_TARBALL):
	@mkdir -p $(@D)
	cd $(@D) && npm pack --silent bullmq@$(BULLMQ)

$(BUILD)/gen/scripts.c: $(BULLMQ_TARBALL) $(LUA)/expand.py $(LUA)/bullmq.lock $(wildcard $(LUA)/*.lua)
	@mkdir -p $(@D)
	$(PYTHON) $(LUA)/expand.py $(LUA)/bullmq.lock $(BULLMQ_TARBALL) $(LUA) $@

$(BUILD)/unit/%: tests/unit/%.c $(BUILD)/libsandpiper.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL) -MMD -MP -o $@ $< $(BUILD)/libsandpiper.a -lcmocka $(LDLIBS_ALL)

.PHONY: unit
unit: $(UNIT_PROGRAMS) ## Build and run the unit tests (cmocka)
	@set -e; for t in $(UNIT_PROGRAMS); do $$t; done

.PHONY: clean
clean: ## Remove what was built (the fetched packages stay in build/deps)
	rm -rf build/release* build/test* build/san*

-include $(shell find build -name '*.d' 2>/dev/null)

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
