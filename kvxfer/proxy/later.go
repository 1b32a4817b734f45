package proxy

import (
	"encoding/binary"
	"fmt"

	"railhead/internal/kvwire"
	"railhead/kvxfer/transfer"
)

// What a client asks for about transfers that it has begun.

// cancel ends a transfer. One that is not known has ended: its completion is on its way, or has been read.
func (a *Agent) cancel(id uint64) {
	a.mu.Lock()
	j := a.jobs[id]
	a.mu.Unlock()
	if j != nil {
		j.cancel(transfer.ErrCancelled)
	}
}

// failedJob returns a transfer that has failed, if it is among the latest ones.
func (a *Agent) failedJob(id uint64) (*job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.failed) - 1; i >= 0; i-- {
		if a.failed[i].id == id {
			return a.failed[i], nil
		}
	}
	return nil, fmt.Errorf("transfer %d is none of the latest %d that have failed", id, maxFailed)
}

// resume starts a transfer of what is missing of one that has failed.
func (a *Agent) resume(s *kvwire.Submission, bytes []byte) error {
	if len(bytes) != 8 {
		return fmt.Errorf("%d bytes of arguments: the number of a transfer takes 8", len(bytes))
	}
	old, err := a.failedJob(binary.LittleEndian.Uint64(bytes))
	if err != nil {
		return err
	}
	var pieces []piece
	for _, i := range old.transfer.Missing() {
		pieces = append(pieces, old.pieces[i])
	}
	again := *s
	again.Priority = old.priority
	if old.eachLayer {
		again.Flags |= kvwire.EachLayer
	}
	return a.begin(&again, old.what, pieces, old.payload)
}

// maxPieces of an answer to Missing.
const maxPieces = 8192

func (a *Agent) missing(m *kvwire.Missing) ([]kvwire.Piece, error) {
	j, err := a.failedJob(m.ID)
	if err != nil {
		return nil, err
	}
	missing := j.transfer.Missing()
	if uint64(m.From) > uint64(len(missing)) {
		return nil, fmt.Errorf("entry %d of %d", m.From, len(missing))
	}
	var list []kvwire.Piece
	for _, i := range missing[m.From:min(len(missing), int(m.From)+int(min(m.Most, maxPieces)))] {
		p := j.pieces[i]
		c := &j.what.chunks[p.chunk]
		list = append(list, kvwire.Piece{Layer: uint32(j.what.firstLayer + p.layer), FirstBlock: uint32(c.first), Blocks: uint32(c.blocks)})
	}
	return list, nil
}

// notify sends a notification of its own.
func (a *Agent) notify(s *kvwire.Submission, bytes []byte) error {
	name, payload, err := peerName(bytes)
	if err != nil {
		return err
	}
	if len(payload) > kvwire.MaxPayload {
		return fmt.Errorf("a notification of %d bytes: at most %d", len(payload), kvwire.MaxPayload)
	}
	peer, err := a.node.agent(name)
	if err != nil {
		return err
	}
	if !a.send(peer, payload) {
		return fmt.Errorf("%d notifications wait for agent %s, which takes none: %w", maxWaiting, name, errLimit)
	}
	a.out.complete(kvwire.Completion{ID: s.ID, Kind: kvwire.KindEnded})
	return nil
}

// send delivers a notification to an agent of this node. False: too many wait for it.
func (a *Agent) send(peer *Agent, payload []byte) bool {
	a.sendMu.Lock()
	defer a.sendMu.Unlock()
	m := message{record: kvwire.Record{Incarnation: a.incarnation, Sequence: a.sequences[peer.incarnation] + 1}, payload: payload}
	copy(m.record.Sender[:], a.name)
	if !peer.out.deliver(m) {
		return false
	}
	a.sequences[peer.incarnation]++
	return true
}
