package client

// #include <stdlib.h>
// #include "railhead.h"
import "C"

import "unsafe"

// EPRouting is a cached routing: Idx and Weights checked once, for any number of dispatches.
type EPRouting struct{ h *C.rh_ep_routing }

// NewRouting makes a routing from Idx or Idx64, and Weights, of the tokens. It does not read X.
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

// Destroy ends the routing. No dispatch with it may be in flight.
func (r *EPRouting) Destroy() error {
	return call(func() C.rh_result { return C.rh_ep_routing_destroy(r.h) })
}

// OnStream returns the same buffer with its calls on a stream of the comm's device; nil for the CPU, which has no streams.
func (e *EP) OnStream(stream unsafe.Pointer) *EP {
	other := *e
	other.stream = stream
	return &other
}

// OnStream moves the dispatch's later calls to another stream. The caller has made that stream wait for the earlier calls.
func (d *EPDispatch) OnStream(stream unsafe.Pointer) { d.stream = stream }

// EPReportMemory is memory outside Go's heap, to which a call writes its report in stream order.
type EPReportMemory struct{ r *C.rh_ep_report }

// NewReportMemory allocates a report with room for every rank.
func (e *EP) NewReportMemory() *EPReportMemory {
	r := (*C.rh_ep_report)(C.calloc(1, C.sizeof_rh_ep_report))
	r.struct_size, r.struct_version = C.sizeof_rh_ep_report, 1
	r.lost_ranks = (*C.int32_t)(C.calloc(C.size_t(e.world), 4))
	r.lost_capacity = C.int32_t(e.world)
	return &EPReportMemory{r}
}

// Report returns the newest report. The stream must have executed the call that writes it.
func (m *EPReportMemory) Report() EPReport { return reportOf(m.r) }

// Free frees the memory. No later call may write to it.
func (m *EPReportMemory) Free() {
	C.free(unsafe.Pointer(m.r.lost_ranks))
	C.free(unsafe.Pointer(m.r))
}

// Reports returns the reports of the dispatch that ended last, and of its combine.
func (e *EP) Reports() (dispatched, combined EPReport, err error) { return e.reports(nil) }

// Reports returns the reports of a dispatch in flight. That of the combine is valid only if the combine has begun.
func (d *EPDispatch) Reports() (dispatched, combined EPReport, err error) { return d.ep.reports(d.h) }

func (e *EP) reports(h *C.rh_ep_handle) (dispatched, combined EPReport, err error) {
	var pins pinned
	defer pins.Unpin()
	first, second := e.newReport(&pins), e.newReport(&pins)
	err = call(func() C.rh_result { return C.rh_ep_get_report(e.h, h, first, second) })
	return reportOf(first), reportOf(second), err
}
