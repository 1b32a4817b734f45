# The client library, for programs in C and other languages:
#
#   make lib                                    build/librailhead.so, build/librailhead.a, build/railhead.pc
#   make install PREFIX=/usr DESTDIR=/staging   header, libraries and railhead.pc; LIBDIR=/usr/lib64 where that is the place
#   make clean
#   make soak                                   hours: the deep tests with 100 times the rounds, then each fuzz target for 60 s
#
# Tests build the library without make, as this file says: they read the assignments of plain words (LIBRARY_...) from it.

# Where its sources are. Go builds them as well, with a package for each of these folders (their doc.go).
LIBRARY_FOLDERS := client/base client/session client/comm client/memory client/collectives client/ep client/kv client/device client/device/cpu client/device/cuda

LIBRARY_INCLUDES := -Iclient -Iclient/include -Ikernels -Ikernels/include -Iinternal/wire -Iinternal/kvwire
LIBRARY_CXXFLAGS := -std=c++17 -fno-exceptions -fno-rtti -fPIC -fvisibility=hidden -pthread
# The C compiler links, so that the library needs no C++ run-time library. It is never unloaded (nodelete): a thread of its
# own may be running in it.
LIBRARY_LDFLAGS := -shared -pthread -Wl,--version-script=client/railhead.map -Wl,--no-undefined -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete

CXXFLAGS ?= -O3
BUILD ?= build
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
INSTALL ?= install

part = $(shell awk '$$2 == "RH_VERSION_$(1)" { print $$3 }' client/include/railhead.h)
MAJOR := $(call part,MAJOR)
VERSION := $(MAJOR).$(call part,MINOR).$(call part,PATCH)

SONAME := librailhead.so.$(MAJOR)
SHARED := $(BUILD)/librailhead.so.$(VERSION)
STATIC := $(BUILD)/librailhead.a
OBJECTS := $(patsubst client/%.cc,$(BUILD)/objects/%.o,$(wildcard $(LIBRARY_FOLDERS:%=%/*.cc)))

.PHONY: lib install clean soak $(BUILD)/railhead.pc
.DELETE_ON_ERROR:

lib: $(SHARED) $(STATIC) $(BUILD)/railhead.pc

$(BUILD)/objects/%.o: client/%.cc Makefile
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(LIBRARY_CXXFLAGS) $(LIBRARY_INCLUDES) -MMD -MP -c $< -o $@

# It includes the GPU's kernels by .incbin, of which the compiler tells make nothing.
$(BUILD)/objects/device/cuda/images.o: $(wildcard kernels/ptx/* kernels/cubin/*)

$(SHARED): $(OBJECTS) client/railhead.map
	$(CC) $(LDFLAGS) $(LIBRARY_LDFLAGS) -Wl,-soname,$(SONAME) $(OBJECTS) -o $@
	ln -sf $(@F) $(BUILD)/$(SONAME)
	ln -sf $(SONAME) $(BUILD)/librailhead.so

$(STATIC): $(OBJECTS)
	rm -f $@
	$(AR) rcs $@ $(OBJECTS)

# Always made again: it depends on variables of the command line.
$(BUILD)/railhead.pc: client/railhead.pc.in
	@mkdir -p $(@D)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

install: lib
	$(INSTALL) -d $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(LIBDIR)/pkgconfig
	$(INSTALL) -m 644 client/include/railhead.h client/include/railhead_ep.h client/include/railhead_kv.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 $(STATIC) $(DESTDIR)$(LIBDIR)/librailhead.a
	$(INSTALL) -m 755 $(SHARED) $(DESTDIR)$(LIBDIR)/librailhead.so.$(VERSION)
	ln -sf librailhead.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/librailhead.so
	$(INSTALL) -m 644 $(BUILD)/railhead.pc $(DESTDIR)$(LIBDIR)/pkgconfig/railhead.pc

clean:
	rm -rf $(BUILD)

soak:
	RAILHEAD_DEEP=100 go test ./internal/killrounds ./kernels/... -count=1 -v -timeout 24h -p 1
	RAILHEAD_DEEP=100 go test ./client/tests -count=1 -v -timeout 24h -run "AnyDispatchAndCombine|ThousandsOfRounds"
	RAILHEAD_DEEP=100 go test ./client/tests/cuda -count=1 -v -timeout 24h -run "AFailureOf|CallOfTheDriver"
	.ci/fuzz 60

-include $(OBJECTS:.o=.d)
