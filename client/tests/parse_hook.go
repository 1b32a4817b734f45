package tests

// #include "parse_hook.h"
import "C"

import "unsafe"

// whyRefused says what the C++ parser finds wrong with bytes as a message of the daemon, "" when nothing. Test files
// cannot use cgo, hence this one.
func whyRefused(b []byte) string {
	why := C.rh_parse_message(unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)))
	if why == nil {
		return ""
	}
	return C.GoString(why)
}
