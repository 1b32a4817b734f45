package client

// #include <stdlib.h>
// #include "railhead.h"
import "C"

import "unsafe"

// RegisterConfig is rh_register_config: memory outside Go's heap that the caller owns.
type RegisterConfig struct {
	Memory []byte
	FD     int // descriptor that Memory is mapped from; -1 = the library finds it
	Offset uint64
}

// Register makes a window of each rank's own memory; collective.
func (c *Comm) Register(m RegisterConfig) (*Window, error) {
	config := (*C.rh_register_config)(C.calloc(1, C.sizeof_rh_register_config))
	defer C.free(unsafe.Pointer(config))
	config.struct_size = C.sizeof_rh_register_config
	config.struct_version = 1
	config.pointer = unsafe.Pointer(unsafe.SliceData(m.Memory))
	config.bytes = C.size_t(len(m.Memory))
	config.fd = C.int32_t(m.FD)
	config.fd_offset = C.uint64_t(m.Offset)
	w := &Window{bytes: len(m.Memory), rank: c.rank}
	if err := call(func() C.rh_result { return C.rh_window_register(c.h, config, &w.h) }); err != nil {
		return nil, err
	}
	return w, nil
}

// Sharing is rh_window_sharing.
type Sharing struct {
	ZeroCopy bool
	Rank     int    // the lowest rank whose memory cannot be shared, -1 = none
	Reason   string // why it cannot, and what to do
}

// Sharing says whether every rank has mapped every other's part.
func (w *Window) Sharing() (Sharing, error) {
	s := (*C.rh_window_sharing)(C.calloc(1, C.sizeof_rh_window_sharing))
	defer C.free(unsafe.Pointer(s))
	s.struct_size = C.sizeof_rh_window_sharing
	s.struct_version = 1
	if err := call(func() C.rh_result { return C.rh_window_get_sharing(w.h, s) }); err != nil {
		return Sharing{}, err
	}
	return Sharing{ZeroCopy: s.zero_copy != 0, Rank: int(s.rank), Reason: C.GoString(&s.reason[0])}, nil
}
