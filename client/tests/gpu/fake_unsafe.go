package gpu

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"time"
	"unsafe"
)

var errNotFake = errors.New("the driver is not the one for tests")

// Account is what this process holds of the driver for tests.
type Account struct {
	Contexts, Streams, Events, Graphs, Execs, UserObjects, Modules, Reservations, Handles, Mappings, Allocations, Opened, Pinned int
}

// ReadAccount reads it.
func ReadAccount() (Account, error) {
	var a C.struct_gpu_account
	if C.gpu_read_account(&a) == 0 {
		return Account{}, errNotFake
	}
	return Account{
		int(a.contexts), int(a.streams), int(a.events), int(a.graphs), int(a.execs), int(a.user_objects), int(a.modules), int(a.reservations), int(a.handles),
		int(a.mappings), int(a.allocations), int(a.opened), int(a.pinned),
	}, nil
}

// Calls is the number of calls of a function so far, "*" = of any; negative: the driver is not the one for tests.
func Calls(function string) int {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	return int(C.gpu_calls(name))
}

// Fail makes the nth call of a function from now on fail with that CUresult; 0 = none.
func Fail(function string, nth int, code uint32) error {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	if C.gpu_fail(name, C.long(nth), C.uint(code)) == 0 {
		return errNotFake
	}
	return nil
}

// Delay makes each call of a function wait before it does anything; 0 = not.
func Delay(function string, d time.Duration) error {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	if C.gpu_delay(name, C.uint(d.Milliseconds())) == 0 {
		return errNotFake
	}
	return nil
}
