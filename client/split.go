package client

// #include "railhead.h"
import "C"

// SplitNone is the color of a rank that gets no comm.
const SplitNone = int(C.RH_SPLIT_NONE)

// Split makes a comm of the ranks with the same color, ordered by key, then by rank. It returns nil for SplitNone. Collective.
func (c *Comm) Split(color, key int) (*Comm, error) {
	var h *C.rh_comm
	if err := call(func() C.rh_result { return C.rh_comm_split(c.h, C.int32_t(color), C.int32_t(key), &h) }); err != nil {
		return nil, err
	}
	if h == nil {
		return nil, nil
	}
	return newComm(h)
}
