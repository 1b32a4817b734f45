package client

// #include <stdlib.h>
// #include "railhead.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"railhead/internal/wire"
)

// EPTokensIn holds the tokens that a rank dispatches: Tokens rows of X, with TopK experts for each in Idx (int32) or Idx64.
type EPTokensIn struct {
	Tokens  int
	Hidden  int    // 0 = the config's
	X       []byte // [Tokens, Hidden] of the config's Dtype
	XScales []byte // FP8 only
	Idx     []int32
	Idx64   []int64    // in place of Idx
	Weights []float32  // nil: all 1
	Routing *EPRouting // in place of Idx, Idx64 and Weights
}

// EPRows holds the buffers for received rows; nil = not wanted. Rows, Tokens and Report are results.
type EPRows struct {
	Layout      EPLayout
	Alignment   int
	Capacity    int // rows: of each expert (padded), of all
	X           []byte
	Scales      []byte
	Counts      []int32 // [local experts]
	Offsets     []int64 // [local experts + 1]
	Weights     []float32
	SourceRank  []int32
	SourceToken []int32
	TopKIdx     []int32 // tokens: [Capacity, TopK]
	TopKWeights []float32

	// Written in the order of the stream; nil: not wanted.
	RowsTo, TokensTo []uint64
	ReportTo         *EPReportMemory

	// On the CPU.
	Rows, Tokens uint64
	Report       EPReport
}

// EPDispatch is a dispatch in flight.
type EPDispatch struct {
	h        *C.rh_ep_handle
	ep       *EP
	stream   unsafe.Pointer // of its calls; nil on the CPU
	tokens   int
	rows     int             // of y
	pins     pinned          // arguments of the dispatch, until it has been received
	sumPins  pinned          // arguments of CombineSend, until CombineRecv
	reportTo *EPReportMemory // CombineSend's
}

// newDispatch makes a dispatch whose finalizer unpins at the latest. In a broken group no call unpins; then no call reads the slices
// either.
func (e *EP) newDispatch(tokens int) *EPDispatch {
	d := &EPDispatch{ep: e, stream: e.stream, tokens: tokens}
	runtime.SetFinalizer(d, func(d *EPDispatch) {
		d.pins.Unpin()
		d.sumPins.Unpin()
	})
	return d
}

// DispatchSend is the first phase. The slices of in stay in use until Recv has returned.
func (e *EP) DispatchSend(in EPTokensIn) (*EPDispatch, error) {
	d := e.newDispatch(in.Tokens)
	c, err := e.in(&in, &d.pins)
	if err != nil {
		return nil, err
	}
	if err := call(func() C.rh_result { return C.rh_ep_dispatch_send(e.h, c, &d.h, d.stream) }); err != nil {
		d.pins.Unpin()
		return nil, err
	}
	return d, nil
}

// Dispatch sends and receives. If the rows exceed the capacity, it returns the dispatch with the error, and Recv can be called again.
func (e *EP) Dispatch(in EPTokensIn, rows *EPRows) (*EPDispatch, error) {
	d := e.newDispatch(in.Tokens)
	c, err := e.in(&in, &d.pins)
	if err != nil {
		return nil, err
	}
	var pins pinned
	defer pins.Unpin()
	out, err := d.out(rows, &pins)
	if err != nil {
		d.pins.Unpin()
		return nil, err
	}
	err = call(func() C.rh_result { return C.rh_ep_dispatch(e.h, c, out, &d.h, d.stream) })
	if err != nil && d.h == nil {
		d.pins.Unpin()
		return nil, err
	}
	return d, d.received(rows, out, err)
}

// Recv is the second phase of a dispatch.
func (d *EPDispatch) Recv(rows *EPRows) error {
	var pins pinned
	defer pins.Unpin()
	out, err := d.out(rows, &pins)
	if err != nil {
		return err
	}
	return d.received(rows, out, call(func() C.rh_result { return C.rh_ep_dispatch_recv(d.h, out, d.stream) }))
}

// Counts returns the rows for each local expert and the token copies, before the rows are received.
func (d *EPDispatch) Counts() (counts []int32, tokens uint64, err error) {
	counts = make([]int32, d.ep.local+1)
	var n C.uint64_t
	err = call(func() C.rh_result { return C.rh_ep_dispatch_counts(d.h, (*C.int32_t)(&counts[0]), &n, d.stream) })
	return counts[:d.ep.local], uint64(n), err
}

// CountsTo writes the same values in stream order. counts and tokens must be memory that Go neither moves nor frees.
func (d *EPDispatch) CountsTo(counts []int32, tokens []uint64) error {
	var pins pinned
	defer pins.Unpin()
	if err := enough("ep_dispatch_counts", "counts", counts, d.ep.local, true); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_ep_dispatch_counts(d.h, (*C.int32_t)(pin(&pins, counts)), (*C.uint64_t)(pin(&pins, tokens)), d.stream)
	})
}

// Release ends a dispatch without a combine. It also ends a dispatch of a broken group or of a destroyed buffer. The slices of the
// dispatch stay pinned until then.
func (d *EPDispatch) Release() error {
	err := call(func() C.rh_result { return C.rh_ep_release(d.h, d.stream) })
	var e *Error
	if err == nil || errors.As(err, &e) && e.Result == wire.ResultInvalidHandle {
		d.pins.Unpin()
		d.sumPins.Unpin()
	}
	return err
}

// EPSums holds the arguments of a combine. Y has the rows of the dispatch.
type EPSums struct {
	Y        []byte
	YDtype   Dtype
	Weighted bool
	Add      []byte // added to the sums; nil: nothing
	Out      []byte
	OutDtype Dtype
	ReportTo *EPReportMemory // written in the order of the stream, when the combine ends; nil: not wanted
}

// Combine sums the experts' outputs for each token.
func (d *EPDispatch) Combine(s EPSums) (EPReport, error) {
	var pins pinned
	defer pins.Unpin()
	c, err := d.sums(&s, &pins)
	if err != nil {
		return EPReport{}, err
	}
	report := d.combineReport(s.ReportTo, &pins)
	err = call(func() C.rh_result { return C.rh_ep_combine(d.h, c, report, d.stream) })
	return d.combined(report), err
}

// CombineSend is the first phase of Combine. The slices of s stay in use until CombineRecv has returned.
func (d *EPDispatch) CombineSend(s EPSums) error {
	var pins pinned
	c, err := d.sums(&s, &pins)
	if err != nil {
		return err
	}
	if err := call(func() C.rh_result { return C.rh_ep_combine_send(d.h, c, d.stream) }); err != nil {
		pins.Unpin() // keeps the pins of a combine that is under way
		return err
	}
	d.sumPins = pins
	d.reportTo = s.ReportTo
	return nil
}

// CombineRecv is the second phase of Combine.
func (d *EPDispatch) CombineRecv() (EPReport, error) {
	var pins pinned
	defer pins.Unpin()
	report := d.combineReport(d.reportTo, &pins)
	err := call(func() C.rh_result { return C.rh_ep_combine_recv(d.h, report, d.stream) })
	if err == nil && d.stream == nil {
		d.sumPins.Unpin()
	}
	return d.combined(report), err
}

// combineReport is the memory for the report of a combine; on a stream the caller must provide it.
func (d *EPDispatch) combineReport(to *EPReportMemory, pins *pinned) *C.rh_ep_report {
	switch {
	case to != nil:
		return to.r
	case d.stream == nil:
		return d.ep.newReport(pins)
	}
	return nil
}

func (d *EPDispatch) combined(r *C.rh_ep_report) EPReport {
	if d.stream != nil {
		return EPReport{} // the call runs later
	}
	return reportOf(r)
}

// enough returns an error if a slice that C uses is too short. A result slice may also be empty.
func enough[T any](operation, name string, s []T, need int, optional bool) error {
	if len(s) >= need || (optional && s == nil) {
		return nil
	}
	return fmt.Errorf("%s: %s has %d entries, the call needs %d", operation, name, len(s), need)
}

func (e *EP) in(in *EPTokensIn, pins *pinned) (*C.rh_ep_dispatch_in, error) {
	c, err := e.routes(in, pins)
	if err != nil {
		return nil, err
	}
	scales := 0
	if e.config.Dtype == FP8E4M3 {
		scales = in.Tokens * e.scaleBytes()
	}
	err = errors.Join(
		enough("ep_dispatch", "X", in.X, in.Tokens*int(c.hidden)*e.config.Dtype.Size(), false),
		enough("ep_dispatch", "XScales", in.XScales, scales, false))
	if err != nil {
		return nil, err
	}
	c.x = pin(pins, in.X)
	c.x_scales = pin(pins, in.XScales)
	return c, nil
}

// routes fills in the routing of the tokens.
func (e *EP) routes(in *EPTokensIn, pins *pinned) (*C.rh_ep_dispatch_in, error) {
	hidden := in.Hidden
	if hidden == 0 {
		hidden = e.config.Hidden
	}
	entries, wide := in.Tokens*e.config.TopK, 0
	switch {
	case in.Routing != nil:
		entries = 0
	case in.Idx64 != nil:
		entries, wide = 0, entries
	}
	err := errors.Join(
		enough("ep_dispatch", "Idx", in.Idx, entries, false),
		enough("ep_dispatch", "Idx64", in.Idx64, wide, false),
		enough("ep_dispatch", "Weights", in.Weights, entries+wide, true))
	if err != nil {
		return nil, err
	}
	c := &C.rh_ep_dispatch_in{struct_size: C.sizeof_rh_ep_dispatch_in, struct_version: 1, num_tokens: C.uint32_t(in.Tokens),
		hidden: C.uint32_t(hidden), idx_dtype: C.RH_I32}
	pins.Pin(c)
	if in.Routing != nil {
		c.routing = in.Routing.h
	}
	c.topk_idx = pin(pins, in.Idx)
	if in.Idx64 != nil {
		c.topk_idx = pin(pins, in.Idx64)
		c.idx_dtype = C.RH_I64
	}
	c.topk_weights = (*C.float)(pin(pins, in.Weights))
	return c, nil
}

// scaleBytes is the size of a row's scales in bytes.
func (e *EP) scaleBytes() int {
	if e.config.Scale == EPScaleF32 {
		return 4 * e.columns
	}
	return e.columns
}

func (d *EPDispatch) out(rows *EPRows, pins *pinned) (*C.rh_ep_dispatch_out, error) {
	e := d.ep
	n, perToken := rows.Capacity, 0
	switch rows.Layout {
	case EPPadded:
		n *= e.local
	case EPTokens:
		perToken = n * e.config.TopK
	}
	const operation = "ep_dispatch_recv"
	err := errors.Join(
		enough(operation, "X", rows.X, n*e.config.Hidden*e.config.WireDtype.Size(), false),
		enough(operation, "Scales", rows.Scales, n*e.scaleBytes(), true),
		enough(operation, "Counts", rows.Counts, e.local, true),
		enough(operation, "Offsets", rows.Offsets, e.local+1, true),
		enough(operation, "Weights", rows.Weights, n, true),
		enough(operation, "SourceRank", rows.SourceRank, n, true),
		enough(operation, "SourceToken", rows.SourceToken, n, true),
		enough(operation, "TopKIdx", rows.TopKIdx, perToken, true),
		enough(operation, "TopKWeights", rows.TopKWeights, perToken, true))
	if err != nil {
		return nil, err
	}
	c := &C.rh_ep_dispatch_out{struct_size: C.sizeof_rh_ep_dispatch_out, struct_version: 1, layout: C.uint32_t(rows.Layout),
		alignment: C.uint32_t(rows.Alignment), capacity: C.uint64_t(rows.Capacity)}
	pins.Pin(c)
	c.x = pin(pins, rows.X)
	c.scales = pin(pins, rows.Scales)
	c.counts = (*C.int32_t)(pin(pins, rows.Counts))
	c.offsets = (*C.int64_t)(pin(pins, rows.Offsets))
	c.weights = (*C.float)(pin(pins, rows.Weights))
	c.source_rank = (*C.int32_t)(pin(pins, rows.SourceRank))
	c.source_token = (*C.int32_t)(pin(pins, rows.SourceToken))
	c.topk_idx = (*C.int32_t)(pin(pins, rows.TopKIdx))
	c.topk_weights = (*C.float)(pin(pins, rows.TopKWeights))
	c.rows_ptr = (*C.uint64_t)(pin(pins, rows.RowsTo))
	c.tokens_ptr = (*C.uint64_t)(pin(pins, rows.TokensTo))
	switch {
	case rows.ReportTo != nil:
		c.report = rows.ReportTo.r
	case d.stream == nil:
		c.report = e.newReport(pins)
	}
	return c, nil
}

func (d *EPDispatch) received(rows *EPRows, c *C.rh_ep_dispatch_out, err error) error {
	if d.stream != nil {
		return err // the call runs later
	}
	rows.Rows, rows.Tokens = uint64(c.rows), uint64(c.tokens)
	if err != nil {
		return err
	}
	rows.Report = reportOf(c.report)
	d.rows = int(c.rows)
	d.pins.Unpin()
	return nil
}

func (d *EPDispatch) sums(s *EPSums, pins *pinned) (*C.rh_ep_combine_args, error) {
	hidden := d.ep.config.Hidden
	err := errors.Join(
		enough("ep_combine", "Y", s.Y, d.rows*hidden*s.YDtype.Size(), false),
		enough("ep_combine", "Add", s.Add, d.tokens*hidden*s.OutDtype.Size(), true),
		enough("ep_combine", "Out", s.Out, d.tokens*hidden*s.OutDtype.Size(), false))
	if err != nil {
		return nil, err
	}
	c := &C.rh_ep_combine_args{struct_size: C.sizeof_rh_ep_combine_args, struct_version: 1, y_dtype: C.rh_dtype(s.YDtype),
		out_dtype: C.rh_dtype(s.OutDtype), weighted: oneIf(s.Weighted)}
	pins.Pin(c)
	c.y = pin(pins, s.Y)
	c.add = pin(pins, s.Add)
	c.out = unsafe.Pointer(pin(pins, s.Out))
	return c, nil
}
