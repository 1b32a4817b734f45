package client

// #include <stdlib.h>
// #include "railhead.h"
import "C"

import "unsafe"

// EPRouting is what Idx and Weights of tokens come to, checked once, for any number of dispatches.
type EPRouting struct{ h *C.rh_ep_routing }

// NewRouting makes one of the tokens' Idx or Idx64, and Weights. X is not looked at.
func (e *EP) NewRouting(in EPTokensIn) (*EPRouting, error) {
	var pins pinned
	defer pins.Unpin()
	c, err := e.routes(&in, &pins)
	if err != nil {
		return nil, err
	}
	r := new(EPRouting)
	err = call(func() C.rh_result { return C.rh_ep_routing_create(e.h, c, &r.h, e.stream) })
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Destroy ends it. No dispatch with it may be in flight.
func (r *EPRouting) Destroy() error {
	return call(func() C.rh_result { return C.rh_ep_routing_destroy(r.h) })
}

// OnStream is the same buffer, with calls on a stream of the comm's device. nil: the CPU, which has none.
func (e *EP) OnStream(stream unsafe.Pointer) *EP {
	other := *e
	other.stream = stream
	return &other
}

// OnStream lets the dispatch's later calls go to another stream, which the caller has made wait for the earlier ones.
func (d *EPDispatch) OnStream(stream unsafe.Pointer) { d.stream = stream }

// EPReportMemory is where a call writes its report in the order of its stream. It is no memory of Go.
type EPReportMemory struct{ r *C.rh_ep_report }

// NewReportMemory makes one with room for every rank.
func (e *EP) NewReportMemory() *EPReportMemory {
	r := (*C.rh_ep_report)(C.calloc(1, C.sizeof_rh_ep_report))
	r.struct_size, r.struct_version = C.sizeof_rh_ep_report, 1
	r.lost_ranks = (*C.int32_t)(C.calloc(C.size_t(e.world), 4))
	r.lost_capacity = C.int32_t(e.world)
	return &EPReportMemory{r}
}

// Report is what was written last. The stream has come past it.
func (m *EPReportMemory) Report() EPReport { return reportOf(m.r) }

// Free gives the memory back. No call is to write it any more.
func (m *EPReportMemory) Free() {
	C.free(unsafe.Pointer(m.r.lost_ranks))
	C.free(unsafe.Pointer(m.r))
}

// Reports are those of the dispatch that has ended last, and of its combine.
func (e *EP) Reports() (dispatched, combined EPReport, err error) { return e.reports(nil) }

// Reports are those of a dispatch in flight. Of the combine there is one only where that has begun.
func (d *EPDispatch) Reports() (dispatched, combined EPReport, err error) { return d.ep.reports(d.h) }

func (e *EP) reports(h *C.rh_ep_handle) (dispatched, combined EPReport, err error) {
	var pins pinned
	defer pins.Unpin()
	first, second := e.newReport(&pins), e.newReport(&pins)
	err = call(func() C.rh_result { return C.rh_ep_get_report(e.h, h, first, second) })
	return reportOf(first), reportOf(second), err
}
