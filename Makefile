# SPDX-License-Identifier: Apache-2.0
#
# streamerd. `make help` lists the targets and variables.

.DEFAULT_GOAL := all
comma := ,

SANITIZE ?=
BUILD ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
DEPS ?= 1
PREFIX ?= /usr/local
DESTDIR ?=
CUDA_HOME ?= /usr/local/cuda
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 300
CHECKER_STEPS ?= 100000
CHECKER_SANITIZED_STEPS ?= 10000
VERSION := 0.1.0

# Expanded when first used, which is after the packages are there, and kept.
once = $(eval $(1) := $(2))$($(1))
pkg = $(shell pkg-config $(1) $(2))
MSGPACK = $(call once,MSGPACK,$(shell pkg-config --exists msgpack-c && echo msgpack-c || echo msgpack))
PKGS_CLIENT = $(MSGPACK) jansson
PKGS_DAEMON = libuv libcurl $(MSGPACK) libxxhash libssl libcrypto yaml-0.1 libsystemd libmicrohttpd
PKGS_TEST = check $(PKGS_DAEMON) jansson
PKG_CFLAGS = $(call once,PKG_CFLAGS,$(call pkg,--cflags,$(PKGS_DAEMON) jansson))
LIBS_DAEMON = $(call once,LIBS_DAEMON,$(call pkg,--libs,$(PKGS_DAEMON)))
LIBS_CLIENT = $(call once,LIBS_CLIENT,$(call pkg,--libs,$(PKGS_CLIENT)))
LIBS_CTL = $(call once,LIBS_CTL,$(call pkg,--libs,ncursesw))
LIBS_TEST = $(call once,LIBS_TEST,$(call pkg,--libs,$(PKGS_TEST)))
CLANG = $(call once,CLANG,$(shell for c in clang-14 clang-18 clang; do command -v $$c && break; done))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wformat=2
CFLAGS ?= -O2 -g
SAN = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALL_CFLAGS = -std=gnu11 $(WARN) $(CFLAGS) -pthread -I. -Iinclude -D_GNU_SOURCE -DSTREAMERD_VERSION='"$(VERSION)"' \
	-fstack-protector-strong -ffunction-sections -fdata-sections $(SAN) $(PKG_CFLAGS)
ALL_LDFLAGS = $(LDFLAGS) -pthread -Wl,--gc-sections -Wl,-z,relro,-z,now $(SAN)

# A line for each step; V=1 shows the commands.
V ?=
run = $(if $(V),,@printf '  %-5s %s\n' $(1) $@;)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
pic = $(patsubst %.c,$(BUILD)/pic/%.o,$(1))
programs = $(patsubst %.c,$(BUILD)/%,$(wildcard $(1)))

PROTO := $(wildcard proto/*.c)
DAEMON := $(wildcard daemon/*/*.c)
CLIENT := $(wildcard client/*.c)
CTL := $(wildcard client/streamerctl/*.c)
BENCH := $(wildcard tests/bench/*.c)
TESTS := $(call programs,tests/unit/test_*.c tests/integration/test_*.c)
REPLAYS := $(call programs,tests/fuzz/fuzz_*.c)
FUZZERS := $(patsubst $(BUILD)/tests/fuzz/%,$(BUILD)/fuzz/%,$(REPLAYS))
PRODUCTS := $(addprefix $(BUILD)/,streamerd streamerctl libstreamer-client.so.0 libstreamer-client.so \
	libstreamer-client.a streamer-client.pc)

## all          the daemon, streamerctl and the client library, in $(BUILD)
all: $(PRODUCTS)

# ---- packages: looked for once in a build folder, and again when the list changes
$(BUILD)/deps-%: config/build-deps.sh
	@mkdir -p $(@D)
	@DEPS=$(DEPS) sh config/build-deps.sh $*
	@touch $@

# ---- objects
$(BUILD)/obj/%.o: %.c Makefile | $(BUILD)/deps-build
	@mkdir -p $(@D)
	$(call run,CC)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/pic/%.o: %.c Makefile | $(BUILD)/deps-build
	@mkdir -p $(@D)
	$(call run,CC)$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

# Our declarations of CUDA are compared with a toolkit's headers where there is one; nothing else needs it.
$(call obj,daemon/device/cuda_check.c): ALL_CFLAGS += $(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include))

$(call obj,$(wildcard tests/*/*.c)): | $(BUILD)/deps-test
check: | $(BUILD)/deps-servers

# ---- products
$(BUILD)/libproto.a: $(call obj,$(PROTO))
$(BUILD)/libdaemon.a: $(call obj,$(DAEMON))
$(BUILD)/libtest.a: $(call obj,$(wildcard tests/lib/*.c))
$(BUILD)/libstreamer-client.a: $(call pic,$(PROTO) $(CLIENT))
$(BUILD)/%.a:
	@rm -f $@
	$(call run,AR)$(AR) rcs $@ $^

$(BUILD)/streamerd: $(call obj,daemon/main.c) $(BUILD)/libdaemon.a $(BUILD)/libproto.a
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_DAEMON)

$(BUILD)/streamerctl: $(call obj,$(CTL)) $(BUILD)/libstreamer-client.a
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_CLIENT) $(LIBS_CTL)

$(BUILD)/libstreamer-client.so.0: $(call pic,$(PROTO) $(CLIENT)) client/libstreamer-client.map
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,--version-script=client/libstreamer-client.map \
		$(if $(SANITIZE),,-Wl,-z,defs) -o $@ $(filter %.o,$^) $(LIBS_CLIENT)

$(BUILD)/libstreamer-client.so: $(BUILD)/libstreamer-client.so.0
	@ln -sf $(notdir $<) $@

$(BUILD)/streamer-client.pc: Makefile | $(BUILD)/deps-build
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: streamer-client' \
		'Description: attach to model weights that streamerd keeps resident' 'Version: $(VERSION)' \
		'Libs: -L$${libdir} -lstreamer-client' 'Libs.private: $(strip $(LIBS_CLIENT))' 'Cflags: -I$${includedir}' >$@

# ---- tests: one program a file
ARCHIVES = $(addprefix $(BUILD)/,libtest.a libdaemon.a libstreamer-client.a libproto.a)
LINK_TEST = $(call run,LD)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(ARCHIVES) $(LIBS_TEST)

$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(call obj,tests/fuzz/driver.c) $(ARCHIVES)
	$(LINK_TEST)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(ARCHIVES)
	$(LINK_TEST)

# Stands before the daemon's calls and lets them fail.
FAULT := $(BUILD)/tests/fault/libfault.so
$(FAULT): tests/lib/fault/shim.c tests/lib/fault/calls.h | $(BUILD)/deps-build
	@mkdir -p $(@D)
	$(call run,LD)$(CC) -std=gnu11 $(WARN) $(CFLAGS) -I. -fPIC -shared -fno-builtin -o $@ $<

# Stand-ins for CUDA, found by the names and sonames of the real libraries.
FAKE := $(BUILD)/tests/fake
FAKES := $(addprefix $(FAKE)/,libcuda.so.1 libcudart.so.13 libcudart.so.12)
LINK_FAKE = $(call run,LD)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -fPIC -shared -Wl,-soname,$(@F) -o $@ $(filter-out %.h,$^)

$(FAKES): $(wildcard tests/lib/fake/*.h) proto/cuda.h daemon/device/cuda_api.h | $(BUILD)/deps-build
$(FAKE)/libcuda.so.1: $(addprefix tests/lib/fake/,cuda.c memory.c vmm.c world.c)
	$(LINK_FAKE)
$(FAKE)/libcudart.so.%: tests/lib/fake/cudart.c tests/lib/fake/stream.c $(FAKE)/libcuda.so.1
	@mkdir -p $(@D)
	@echo '$(@F) { global: cuda*; local: *; };' >$@.map
	$(LINK_FAKE) -DFAKE_RUNTIME=$*090 -Wl,--version-script=$@.map -Wl,-rpath,'$$ORIGIN'

$(BUILD)/bench: $(call obj,$(BENCH)) $(ARCHIVES) | $(BUILD)/deps-bench
	$(LINK_TEST)

## tests        builds the test programs
tests: all $(TESTS) $(REPLAYS) $(FAKES) $(FAULT)

# Sanitizer builds run the short set, and get more time for it.
export STREAMERD_BUILD = $(BUILD)
export STREAMERD_TEST_SHORT ?= $(if $(SANITIZE),1,0)
export CK_TIMEOUT_MULTIPLIER ?= $(if $(SANITIZE),10,2)
export FUZZ_SECONDS SOAK_SECONDS CHECKER_STEPS CHECKER_SEED CHECKER_KIND CI

# What runs a second time with GPUs, which are stand-ins, in place of the host device: all that is about models
# and processes. Not these:
#   GPUs of their own     cuda* doctor_gpus gpu_run http_pauses several_*
#   pages and host memory faults memory monitor slice_cache spare top
#   kept over a restart   again namespaces reclaim* restart systemd* taken_back (memory of a GPU is not)
#   no device in them     access completion crowds doctor hostile_users load_line manual reload roles* testlib
#   as http to a device   http_failures http_tunnel https hub s3*
#   both kinds in it      checker
ON_GPU := arrival bad_files changes cli cli_held fairness force generations hostile http kills large lies lives \
	preload residency rounds sandbox sources wanted
CHECKS = $(TESTS) $(REPLAYS) $(ON_GPU:%=cuda=$(BUILD)/tests/integration/test_%)

## check        all tests: unit, integration (again on stand-ins for GPUs), the fuzz corpora, layers; ONLY="name
##              name" runs the programs with one of these in their names, JOBS=n so many at a time
chosen = $(foreach t,$(CHECKS),$(if $(strip $(foreach name,$(ONLY),$(findstring $(name),$(t)))),$(t)))
check: tests layers
	@tests/check.sh $(if $(ONLY),$(chosen),$(CHECKS))

## soak         each proof at its full length: many connections, lies, every call that fails, kills, random load for
##              SOAK_SECONDS, a model of the daemon for CHECKER_STEPS, and for CHECKER_SANITIZED_STEPS under sanitizers
SOAK := $(addprefix $(BUILD)/tests/soak/,soak checker kills) $(addprefix $(BUILD)/tests/integration/test_,crowds lies faults)
soak: all $(SOAK) $(FAULT) $(FAKES) | $(BUILD)/deps-servers
	@CONNECTIONS=10000 $(BUILD)/tests/integration/test_crowds
	@$(BUILD)/tests/integration/test_lies
	@STREAMERD_FAULTS=all timeout 1800 $(BUILD)/tests/integration/test_faults
	@$(BUILD)/tests/soak/kills
	@$(BUILD)/tests/soak/soak
	@$(BUILD)/tests/soak/checker
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/sanitized SANITIZE=address,undefined soak-sanitized

soak-sanitized: all $(BUILD)/tests/soak/checker $(FAKES)
	@CHECKER_STEPS=$(CHECKER_SANITIZED_STEPS) $(BUILD)/tests/soak/checker

## fuzz         libFuzzer on each target for FUZZ_SECONDS; FUZZ_SEED=n repeats
fuzz: | $(BUILD)/deps-fuzz
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/fuzz-objects fuzz-run CC=$(CLANG) SANITIZE=address,undefined,fuzzer-no-link

fuzz-run: $(FUZZERS)
	@tests/fuzz.sh $(FUZZERS)

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(ARCHIVES)
	@mkdir -p $(@D)
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(ARCHIVES) $(LIBS_TEST)

## bench        measures every row of the table into $(BUILD)/bench.json
bench: all $(BUILD)/bench
	@$(BUILD)/bench

## demo         loads a model once and uses it from several processes
demo: all $(call programs,tests/demo/*.c)
	@BUILD=$(BUILD) tests/demo/run

## layers       who may include whom
layers:
	@tests/layers.sh

## lint         formatting, and both compilers without a warning
lint: | $(BUILD)/deps-lint
	@tests/lint.sh
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/lint-gcc CC=gcc CFLAGS='$(CFLAGS) -Werror' objects
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/lint-clang CC=$(CLANG) CFLAGS='$(CFLAGS) -Werror' objects

objects: $(call obj,$(PROTO) $(DAEMON) $(CLIENT) $(CTL) daemon/main.c $(wildcard tests/*/*.c))

## install      to $(DESTDIR)$(PREFIX)
SYSTEMD := $(wildcard systemd/*.service systemd/*.socket systemd/*.d/*)
# Where each of systemd's kinds of files lies below $(PREFIX)/lib.
lib_of = $(if $(filter systemd/%.service systemd/%.socket,$1),systemd/system/$(notdir $1),$(patsubst systemd/%,%,$1))
MAN := $(wildcard docs/man/*)
# Where each shell looks, below $(PREFIX)/share.
COMPLETIONS := bash-completion/completions zsh/site-functions fish/vendor_completions.d
install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/pkgconfig lib/systemd/system include/streamer share/doc/streamerd \
		$(foreach d,sysusers tmpfiles sysctl,lib/$d.d))
	install $(BUILD)/streamerd $(BUILD)/streamerctl $(DESTDIR)$(PREFIX)/bin
	install $(BUILD)/libstreamer-client.so.0 $(DESTDIR)$(PREFIX)/lib
	ln -sf libstreamer-client.so.0 $(DESTDIR)$(PREFIX)/lib/libstreamer-client.so
	install -m 644 $(BUILD)/libstreamer-client.a $(DESTDIR)$(PREFIX)/lib
	sed 's|^prefix=.*|prefix=$(PREFIX)|' $(BUILD)/streamer-client.pc >$(DESTDIR)$(PREFIX)/lib/pkgconfig/streamer-client.pc
	install -m 644 include/streamer/client.h $(DESTDIR)$(PREFIX)/include/streamer
	install -m 644 config/streamerd.yaml config/alerts.yaml config/grafana-dashboard.json config/nginx-slice-cache.conf \
		LICENSE $(wildcard docs/*.md) $(DESTDIR)$(PREFIX)/share/doc/streamerd
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,$(addprefix man/man,$(sort $(subst .,,$(suffix $(MAN))))) $(COMPLETIONS))
	$(foreach m,$(MAN),install -m 644 $m $(DESTDIR)$(PREFIX)/share/man/man$(subst .,,$(suffix $m)) &&) :
	$(foreach p,streamerctl streamerd,install -m 644 config/completion/streamerctl.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/$p &&) :
	install -m 644 config/completion/_streamerctl $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(foreach p,streamerctl streamerd,install -m 644 config/completion/streamerctl.fish \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$p.fish &&) :
	$(foreach f,$(SYSTEMD),sed 's|/usr/|$(PREFIX)/|' $f >$(DESTDIR)$(PREFIX)/lib/$(call lib_of,$f) &&) :

## clean        removes every build folder
clean:
	rm -rf build build-*

## help         this
help:
	@sed -n 's/^## //p' Makefile
	@echo
	@echo 'Variables: BUILD=dir CC=compiler CFLAGS=flags SANITIZE=address,undefined|thread DEPS=0 (install nothing)'
	@echo '           PREFIX=/usr/local DESTDIR= FUZZ_SECONDS=60 SOAK_SECONDS=300 CI=true (a skipped test fails) V=1 (show commands)'

-include $(shell find $(BUILD)/obj $(BUILD)/pic -name '*.d' 2>/dev/null)
.PHONY: all tests check soak soak-sanitized fuzz fuzz-run bench demo layers lint objects install clean help
.SECONDARY:
