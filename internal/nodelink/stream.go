package nodelink

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"syscall"
)

// stream is one connection of a link. A goroutine reads from it and another writes to it.
type stream struct {
	link  *Link
	index int // 0: the control stream
	conn  *conn

	// These are guarded by link.mu.
	wake  *sync.Cond // the writer waits here
	idle  bool       // it does
	watch watch
	ping  bool   // one is due
	pong  bool   // one is due
	asked uint64 // its number

	// These are the writer's.
	batch batch
	heads [maxBatch][headBytes]byte
	out   net.Buffers

	// These are the reader's.
	in     *reader
	limits limits
	header []byte
	slices [][]byte
}

func newStream(l *Link, index int, c *conn) (*stream, error) {
	s := &stream{link: l, index: index, conn: c, wake: sync.NewCond(&l.mu)}
	config := &l.endpoint.config
	s.limits = limits{control: index == 0, maxHeader: uint32(config.MaxHeader), maxPayload: uint64(config.MaxPayload)}
	var raw syscall.RawConn
	if c.records == nil {
		var err error
		if raw, err = c.tcp.SyscallConn(); err != nil {
			return nil, err
		}
	}
	s.in = newReader(c, raw)
	return s, nil
}

// collect fills the batch with what the stream is to send. The caller holds link.mu.
func (s *stream) collect() {
	l, b := s.link, &s.batch
	if s.pong {
		b.frames = append(b.frames, frame{head: head{frame: framePong, number: s.asked}})
	}
	if s.ping {
		b.frames = append(b.frames, frame{head: head{frame: framePing, number: s.watch.number}})
	}
	s.ping, s.pong = false, false
	if s.index > 0 {
		l.queue.takePieces(b)
		return
	}
	if l.arrived > 0 {
		b.frames = append(b.frames, frame{head: head{frame: frameTaken, number: l.arrived}})
		l.arrived = 0
	}
	l.queue.takeControl(b)
}

// write sends batches until the link ends.
func (s *stream) write() error {
	for s.link.next(s) {
		out := s.out[:0]
		for i := range s.batch.frames {
			f := &s.batch.frames[i]
			slices := s.batch.slices[f.from:f.to]
			if f.head.summed {
				f.head.pieceSum = sumOf(slices)
			}
			at := s.heads[i][:]
			f.head.encode(at, f.header)
			out = append(out, at)
			if len(f.header) > 0 {
				out = append(out, f.header)
			}
			out = append(out, slices...)
		}
		s.out = out
		err := s.conn.send(out)
		clear(out) // else it keeps payloads alive
		if err != nil {
			return err
		}
		s.link.written(s)
	}
	return nil
}

func sumOf(slices [][]byte) uint32 {
	sum := uint32(0)
	for _, s := range slices {
		sum = crc32.Update(sum, castagnoli, s)
	}
	return sum
}

// read takes frames until the link ends.
func (s *stream) read() error {
	for {
		b, err := s.in.peek(headBytes)
		if errors.Is(err, io.EOF) {
			return errors.New("the peer has closed the connection")
		}
		if err != nil {
			return err
		}
		h, err := decodeHead(b, s.limits)
		if err != nil {
			return err
		}
		var fixed [headBytes]byte
		copy(fixed[:], b)
		s.in.discard(headBytes)
		if cap(s.header) < int(h.header) {
			s.header = make([]byte, h.header)
		}
		header := s.header[:h.header]
		if err := s.in.full([][]byte{header}); err != nil {
			return err
		}
		if sum := headSum(fixed[:], header); sum != h.headAndSum {
			return broken("the checksum of a head is %#x, not %#x", sum, h.headAndSum)
		}
		if err := s.take(h, header); err != nil {
			return err
		}
	}
}

// take executes a frame whose head and header were read.
func (s *stream) take(h head, header []byte) error {
	l := s.link
	switch h.frame {
	case frameMessage:
		l.handler().Received(l, h.kind, header, nil)
		return nil
	case framePing:
		return l.pinged(s, h.number)
	case framePong:
		return l.answered(s, h.number)
	case frameTaken:
		return l.taken(h.number)
	case frameFirst:
		if h.position > PieceBytes {
			return s.takeFirst(h, header)
		}
		return s.takeWhole(h, header)
	}
	in, err := l.claim(h)
	if err != nil {
		return err
	}
	return s.takePiece(h, in, int(h.position))
}

// findPlace asks the handler for the place of a payload.
func (s *stream) findPlace(h head, header []byte) (place, error) {
	slices, err := s.link.handler().Place(s.link, h.kind, header, int(h.position))
	if err != nil {
		return place{}, err
	}
	return newPlace(slices, int(h.position))
}

// takeWhole takes a message of one piece.
func (s *stream) takeWhole(h head, header []byte) error {
	p, wrong := s.findPlace(h, header)
	damaged, err := s.fill(h, p.slices, wrong != nil)
	if err != nil {
		return err
	}
	if wrong == nil {
		wrong = damaged
	}
	s.link.handler().Received(s.link, h.kind, header, wrong)
	return nil
}

// takeFirst takes the first piece of a message of several.
func (s *stream) takeFirst(h head, header []byte) error {
	l := s.link
	if err := l.begin(h.number); err != nil {
		return err
	}
	in := newIncoming(h, header)
	in.place, in.err = s.findPlace(h, in.header)
	in.dropped = in.err != nil
	if err := in.claim(0, h.piece); err != nil {
		return err
	}
	l.placed(h.number, in)
	return s.takePiece(h, in, 0)
}

// takePiece reads a piece that was claimed.
func (s *stream) takePiece(h head, in *incoming, position int) error {
	if !in.dropped {
		s.slices = in.place.at(s.slices[:0], position, int(h.piece))
	}
	damaged, err := s.fill(h, s.slices, in.dropped)
	clear(s.slices)
	s.slices = s.slices[:0]
	if err != nil {
		return err
	}
	if s.link.pieceArrived(h.number, in, damaged) {
		s.link.handler().Received(s.link, in.kind, in.header, in.err)
		s.link.tookLarge()
	}
	return nil
}

// fill reads a piece to its place, or drops it.
func (s *stream) fill(h head, slices [][]byte, drop bool) (damaged, err error) {
	if drop {
		return nil, s.in.skip(int(h.piece))
	}
	if err := s.in.full(slices); err != nil {
		return nil, err
	}
	if !h.summed {
		return nil, nil
	}
	if sum := sumOf(slices); sum != h.pieceSum {
		return fmt.Errorf("%#x, not %#x: %w", sum, h.pieceSum, ErrChecksum), nil
	}
	return nil, nil
}
