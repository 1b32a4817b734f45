package tests

// #include "parse_hook.h"
import "C"

import "unsafe"

// whyRefused returns why the C++ parser refuses bytes as a message of the daemon; "" = it accepts them. It is not in a test file, because
// those cannot use cgo.
func whyRefused(b []byte) string {
	why := C.rh_parse_message(unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)))
	if why == nil {
		return ""
	}
	return C.GoString(why)
}
