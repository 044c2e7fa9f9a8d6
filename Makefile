# streamerd. `make help` lists the targets.
#
#   BUILD=dir           build folder (build)
#   SANITIZE=a,b        address,undefined or thread; its own build folder
#   CC=clang-14         another compiler
#   DEPS=0              never install packages

SANITIZE ?=
BUILD ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
DEPS ?= 1
PREFIX ?= /usr/local
DESTDIR ?=
comma := ,

VERSION := 0.1.0
PKGS_DAEMON := libuv msgpack libxxhash libcrypto yaml-0.1 libsystemd
PKGS_CLIENT := msgpack jansson
PKGS_TEST := check

# Evaluated when used, after the packages are there.
pkg = $(shell pkg-config $(1) $(2))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wformat=2
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=gnu11 $(WARN) $(CFLAGS) -pthread -I. -Iinclude -D_GNU_SOURCE -DSTREAMERD_VERSION='"$(VERSION)"' \
	-fstack-protector-strong -ffunction-sections -fdata-sections $(SAN) $(PKG_CFLAGS)
ALL_LDFLAGS = $(LDFLAGS) -pthread -Wl,--gc-sections -Wl,-z,relro,-z,now $(SAN)
SAN = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all)
PKG_CFLAGS = $(call pkg,--cflags,$(PKGS_DAEMON) $(PKGS_CLIENT) $(PKGS_TEST))
LIBS_DAEMON = $(call pkg,--libs,$(PKGS_DAEMON))
LIBS_CLIENT = $(call pkg,--libs,$(PKGS_CLIENT))
LIBS_TEST = $(call pkg,--libs,$(PKGS_TEST) $(PKGS_DAEMON) $(PKGS_CLIENT))

PROTO_SRC := $(wildcard proto/*.c)
DAEMON_SRC := $(wildcard daemon/*/*.c)
CLIENT_SRC := $(wildcard client/*.c)
CTL_SRC := $(wildcard client/streamerctl/*.c)
TESTLIB_SRC := $(wildcard tests/lib/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
INTEGRATION_SRC := $(wildcard tests/integration/test_*.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC := $(wildcard tests/bench/*.c)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
pic = $(patsubst %.c,$(BUILD)/pic/%.o,$(1))

PRODUCTS := $(BUILD)/streamerd $(BUILD)/streamerctl $(BUILD)/libstreamer-client.so.0 $(BUILD)/libstreamer-client.so \
	$(BUILD)/libstreamer-client.a $(BUILD)/streamer-client.pc

all: $(PRODUCTS)

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/pic/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

$(BUILD)/libproto.a: $(call obj,$(PROTO_SRC))
$(BUILD)/libdaemon.a: $(call obj,$(DAEMON_SRC))
$(BUILD)/libtest.a: $(call obj,$(TESTLIB_SRC))
$(BUILD)/libstreamer-client.a: $(call pic,$(PROTO_SRC) $(CLIENT_SRC))
$(BUILD)/%.a:
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/streamerd: $(call obj,daemon/main.c) $(BUILD)/libdaemon.a $(BUILD)/libproto.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_DAEMON)

$(BUILD)/libstreamer-client.so.0: $(call pic,$(PROTO_SRC) $(CLIENT_SRC)) client/libstreamer-client.map
	$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libstreamer-client.so.0 -Wl,--version-script=client/libstreamer-client.map \
		$(if $(SANITIZE),,-Wl,-z,defs) -o $@ $(filter %.o,$^) $(LIBS_CLIENT)

$(BUILD)/libstreamer-client.so: $(BUILD)/libstreamer-client.so.0
	ln -sf $(notdir $<) $@

$(BUILD)/streamerctl: $(call obj,$(CTL_SRC)) $(BUILD)/libstreamer-client.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_CLIENT)

$(BUILD)/streamer-client.pc: Makefile
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: streamer-client' \
		'Description: attach to model weights that streamerd keeps resident' 'Version: $(VERSION)' \
		'Libs: -L$${libdir} -lstreamer-client' 'Libs.private: -lmsgpackc -ljansson' 'Cflags: -I$${includedir}' >$@

# ---- tests: one program a file
TEST_ARCHIVES = $(BUILD)/libtest.a $(BUILD)/libdaemon.a $(BUILD)/libstreamer-client.a $(BUILD)/libproto.a
UNIT := $(patsubst tests/%.c,$(BUILD)/tests/%,$(UNIT_SRC))
INTEGRATION := $(patsubst tests/%.c,$(BUILD)/tests/%,$(INTEGRATION_SRC))

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $< $(TEST_ARCHIVES) $(LIBS_TEST)

tests: $(UNIT) $(INTEGRATION)

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all tests clean
.SECONDARY:
