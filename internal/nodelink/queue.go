package nodelink

import "fmt"

// maxBatch is how many frames one write sends at most.
const maxBatch = 32

// outgoing is a message on its way out.
type outgoing struct {
	kind    uint16
	header  []byte
	payload [][]byte
	summed  bool
	total   int64 // bytes of the payload
	done    func(error)

	number    uint64
	next      int64 // where the next piece begins
	index     int   // its slice of the payload
	offset    int   // its place in that slice
	unwritten int   // pieces that a stream has taken and not written
}

func (m *outgoing) large() bool { return m.total > PieceBytes }

// frame is a frame to send. Its piece is batch.slices[from:to].
type frame struct {
	head     head
	header   []byte
	from, to int
	message  *outgoing // nil for frames of the link itself
}

// batch is what a stream sends with one write.
type batch struct {
	frames []frame
	slices [][]byte
	bytes  int64 // of pieces
}

func (b *batch) reset() {
	clear(b.frames)
	clear(b.slices)
	b.frames, b.slices, b.bytes = b.frames[:0], b.slices[:0], 0
}

func (b *batch) full() bool { return len(b.frames) >= maxBatch || b.bytes >= PieceBytes }

// cut adds the next piece of a message.
func (b *batch) cut(m *outgoing) {
	n := min(PieceBytes, m.total-m.next)
	f := frame{head: head{frame: frameMore, summed: m.summed, number: m.number, position: uint64(m.next), piece: uint32(n)}, from: len(b.slices), message: m}
	if m.next == 0 {
		f.head.frame, f.head.kind, f.head.position = frameFirst, m.kind, uint64(m.total)
		f.header, f.head.header = m.header, uint32(len(m.header))
	}
	for left := n; left > 0; {
		s := m.payload[m.index][m.offset:]
		if int64(len(s)) > left {
			s = s[:left]
			m.offset += len(s)
		} else {
			m.index, m.offset = m.index+1, 0
		}
		if len(s) > 0 {
			b.slices = append(b.slices, s)
		}
		left -= int64(len(s))
	}
	f.to = len(b.slices)
	b.frames, b.bytes = append(b.frames, f), b.bytes+n
	m.next += n
	m.unwritten++
}

// fifo is a queue. Its memory is that of the most that has waited at once.
type fifo struct {
	ring  []*outgoing
	first int
	count int
}

func (f *fifo) push(m *outgoing) {
	if f.count == len(f.ring) {
		larger := make([]*outgoing, max(16, 2*f.count))
		for i := range f.count {
			larger[i] = f.ring[(f.first+i)%f.count]
		}
		f.ring, f.first = larger, 0
	}
	f.ring[(f.first+f.count)%len(f.ring)] = m
	f.count++
}

func (f *fifo) pop() *outgoing {
	m := f.ring[f.first]
	f.ring[f.first] = nil
	f.first, f.count = (f.first+1)%len(f.ring), f.count-1
	return m
}

// queue is the messages of a link on their way out: a state machine without I/O, lock and clock.
type queue struct {
	limit   int // messages without payload, and with payload
	control fifo
	turns   fifo // messages with payload, each a piece a turn
	held    fifo // those of several pieces, until the peer has taken earlier ones
	large   int  // those of several pieces that have a turn or were sent, and were not taken
	last    uint64

	waiting     map[*outgoing]struct{} // not written in whole
	withPayload int                    // of these
}

// put adds a message. It may be ErrBusy.
func (q *queue) put(m *outgoing) error {
	count := len(q.waiting) - q.withPayload
	if m.total > 0 {
		count = q.withPayload
	}
	if count >= q.limit {
		return fmt.Errorf("%d messages, payload %t: %w", count, m.total > 0, ErrBusy)
	}
	q.waiting[m] = struct{}{}
	if m.total == 0 {
		q.control.push(m)
		return nil
	}
	q.withPayload++
	q.last++
	m.number = q.last
	switch {
	case !m.large():
		q.turns.push(m)
	case q.large < maxLarge:
		q.large++
		q.turns.push(m)
	default:
		q.held.push(m)
	}
	return nil
}

// takeControl adds messages without payload.
func (q *queue) takeControl(b *batch) {
	for q.control.count > 0 && !b.full() {
		m := q.control.pop()
		m.unwritten++
		b.frames = append(b.frames, frame{head: head{frame: frameMessage, kind: m.kind, header: uint32(len(m.header))}, header: m.header, message: m})
		b.bytes += int64(len(m.header))
	}
}

// takePieces adds pieces of messages, in turn.
func (q *queue) takePieces(b *batch) {
	for q.turns.count > 0 && !b.full() {
		m := q.turns.pop()
		b.cut(m)
		if m.next < m.total {
			q.turns.push(m)
		}
	}
}

// taken says that the peer has taken n more messages of several pieces.
func (q *queue) taken(n uint64) error {
	if n > uint64(q.large) {
		return broken("%d messages of several pieces taken, %d were sent", n, q.large)
	}
	for q.large -= int(n); q.large < maxLarge && q.held.count > 0; q.large++ {
		q.turns.push(q.held.pop())
	}
	return nil
}

// written says that a frame was written. It returns whether its message is.
func (q *queue) written(m *outgoing) bool {
	m.unwritten--
	if m.unwritten > 0 || m.next < m.total {
		return false
	}
	delete(q.waiting, m)
	if m.total > 0 {
		q.withPayload--
	}
	return true
}
