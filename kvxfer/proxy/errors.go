package proxy

import (
	"errors"

	"railhead/internal/wire"
	"railhead/kvxfer/grant"
	"railhead/kvxfer/transfer"
)

var (
	errNoPeer    = errors.New("no agent of that name is there: it has not started, or has ended")
	errNameTaken = errors.New("another agent of this node has this name: end it, or choose another name")
	errPeerGone  = errors.New("the peer has ended: its memory is gone")
	errFreed     = errors.New("its memory was freed")
	errLimit     = errors.New("a bound was reached")
	errEnding    = errors.New("the agent ends")
)

// resultOf is the rh_result for an error.
func resultOf(err error) wire.Result {
	for _, r := range []struct {
		result wire.Result
		of     []error
	}{
		{wire.ResultOK, []error{nil}},
		{wire.ResultTimeout, []error{transfer.ErrDeadline}},
		{wire.ResultStalled, []error{transfer.ErrStalled}},
		{wire.ResultCancelled, []error{transfer.ErrCancelled, errEnding}},
		{wire.ResultPathLost, []error{transfer.ErrPath}},
		{wire.ResultNameTaken, []error{errNameTaken}},
		{wire.ResultNoPeer, []error{errNoPeer}},
		{wire.ResultStale, []error{grant.ErrStale, grant.ErrForeign, grant.ErrWritten, transfer.ErrStale, errPeerGone, errFreed}},
		{wire.ResultExpired, []error{grant.ErrExpired}},
		{wire.ResultRefused, []error{grant.ErrForged, grant.ErrRevoked, grant.ErrRights, grant.ErrReader, grant.ErrRange, transfer.ErrRefused}},
		{wire.ResultLimit, []error{errLimit}},
	} {
		for _, e := range r.of {
			if errors.Is(err, e) {
				return r.result
			}
		}
	}
	return wire.ResultInvalidArgument
}
