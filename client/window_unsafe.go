package client

// #include "railhead.h"
import "C"

import "unsafe"

// Peer is rank's part of the window as this process sees it: memory outside Go's heap, valid until Free or Finalize. Of a GPU's comm it has
// the GPU's addresses: its bytes must not be read or written from Go.
func (w *Window) Peer(rank int) ([]byte, error) {
	var p unsafe.Pointer
	if err := call(func() C.rh_result { return C.rh_window_pointer(w.h, C.int32_t(rank), &p) }); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), w.bytes), nil
}

// Local is this rank's own part of the window.
func (w *Window) Local() ([]byte, error) { return w.Peer(w.rank) }
