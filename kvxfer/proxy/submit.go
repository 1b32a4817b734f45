package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"

	"railhead/internal/kvwire"
	"railhead/kvxfer/grant"
	"railhead/kvxfer/paged"
)

// pieceBytes is about how much a piece moves: enough for the checks of its grant to cost little, and little enough for a cancelled transfer to
// be quiesced soon.
const pieceBytes = 1 << 20

// submit starts what a client asks for. Whatever is wrong with it is its completion's error.
func (a *Agent) submit(s *kvwire.Submission, bytes []byte) {
	err := a.execute(s, bytes)
	if err == nil {
		return
	}
	a.out.complete(kvwire.Completion{
		ID: s.ID, Kind: kvwire.KindEnded, Result: int32(resultOf(err)), Text: kvwire.MakeText(fmt.Sprintf("KV %v: %v", s.Op, err)),
	})
}

func (a *Agent) execute(s *kvwire.Submission, bytes []byte) error {
	switch s.Op {
	case kvwire.OpRead, kvwire.OpWrite:
		return a.transfer(s, bytes)
	case kvwire.OpResume:
		return a.resume(s, bytes)
	case kvwire.OpCancel:
		a.cancel(s.ID)
		return nil
	case kvwire.OpNotify:
		return a.notify(s, bytes)
	}
	return fmt.Errorf("operation %d is not known", s.Op)
}

// arguments are the bytes of a transfer in the arena.
type arguments struct {
	peer    string
	own     []uint32
	places  []uint32
	payload []byte
}

func parseArguments(s *kvwire.Submission, b []byte) (g arguments, err error) {
	want := uint64(kvwire.NameBytes) + 4*uint64(s.OwnBlocks) + 4*uint64(s.PeerBlocks) + uint64(s.PayloadBytes)
	if uint64(len(b)) != want {
		return g, fmt.Errorf("%d bytes of arguments: %d own blocks, %d of the peer and a notification of %d take %d", len(b), s.OwnBlocks, s.PeerBlocks,
			s.PayloadBytes, want)
	}
	if g.peer, b, err = peerName(b); err != nil {
		return g, err
	}
	if s.PayloadBytes > kvwire.MaxPayload {
		return g, fmt.Errorf("a notification of %d bytes: at most %d", s.PayloadBytes, kvwire.MaxPayload)
	}
	g.own, b = numbers(b, int(s.OwnBlocks))
	g.places, b = numbers(b, int(s.PeerBlocks))
	if s.PayloadBytes > 0 {
		g.payload = b
	}
	return g, nil
}

func peerName(b []byte) (string, []byte, error) {
	if len(b) < kvwire.NameBytes {
		return "", nil, errors.New("no name of a peer")
	}
	name := kvwire.Name(b[:kvwire.NameBytes])
	return name.String(), b[kvwire.NameBytes:], kvwire.CheckName(name.String())
}

func numbers(b []byte, n int) ([]uint32, []byte) {
	list := make([]uint32, n)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return list, b[4*n:]
}

// transfer starts a read or write.
func (a *Agent) transfer(s *kvwire.Submission, bytes []byte) error {
	g, err := parseArguments(s, bytes)
	if err != nil {
		return err
	}
	if s.Priority >= priorities {
		return fmt.Errorf("priority %d: 0 to %d", s.Priority, priorities-1)
	}
	if s.Tokens == 0 {
		return errors.New("no tokens")
	}
	w, err := a.what(s, &g)
	if err != nil {
		return err
	}
	pieces := make([]piece, 0, w.layers*len(w.chunks))
	for layer := range w.layers {
		for chunk := range w.chunks {
			pieces = append(pieces, piece{layer, chunk})
		}
	}
	return a.begin(s, w, pieces, g.payload)
}

// begin starts a job.
func (a *Agent) begin(s *kvwire.Submission, w *what, pieces []piece, payload []byte) error {
	j, err := newJob(a, s, w, pieces, payload)
	if err != nil {
		return err
	}
	a.mu.Lock()
	switch {
	case a.ended:
		err = errEnding
	case s.ID == 0 || a.jobs[s.ID] != nil:
		err = fmt.Errorf("number %d: must be of no other operation under way, and not 0", s.ID)
	case len(a.jobs) >= int(a.node.config.Sizes.Entries):
		err = fmt.Errorf("%d transfers under way: %w", len(a.jobs), errLimit)
	default:
		a.jobs[s.ID] = j
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if len(pieces) == 1 && w.chunks[pieces[0].chunk].prepared.Bytes() <= inlineBytes {
		a.node.moveOne(j)
	} else {
		a.node.pool.add(j)
	}
	return nil
}

// inlineBytes is up to how many bytes an agent's loop moves a transfer itself: waking a thread would take longer.
const inlineBytes = 128 << 10

// what finds out what a transfer moves, and checks everything that can be checked before the first byte.
func (a *Agent) what(s *kvwire.Submission, g *arguments) (*what, error) {
	reference, err := grant.ParseReference(s.Reference[:])
	if err != nil {
		return nil, err
	}
	w := &what{rights: grant.Read, reference: reference}
	if s.Op == kvwire.OpWrite {
		w.rights = grant.Write
	}
	if w.peer, err = a.node.agent(g.peer); err != nil {
		return nil, err
	}
	if w.own, err = a.cacheOf(s.Cache); err != nil {
		return nil, err
	}
	plan, places, blocks, err := w.plan(a, s, g)
	if err != nil {
		return nil, err
	}
	if err := w.setLayers(plan, s); err != nil {
		return nil, err
	}
	return w, w.cut(plan, s, g.own, places, blocks)
}

func (a *Agent) cacheOf(number uint32) (*cache, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.caches[number]
	if c == nil {
		return nil, fmt.Errorf("cache %d of agent %s is not known", number, a.name)
	}
	return c, nil
}

// plan shows the reference to the peer, and plans. It returns the places in the grant's list, and the blocks that are there.
func (w *what) plan(a *Agent, s *kvwire.Submission, g *arguments) (p *paged.Plan, places, blocks []uint32, err error) {
	places = g.places
	if len(places) == 0 {
		theirs, err := w.peer.grantedCache(w.reference)
		if err != nil {
			return nil, nil, nil, err
		}
		tokens := uint64(s.PeerToken) + uint64(s.Tokens)
		count := (tokens + uint64(theirs.side.BlockTokens) - 1) / uint64(theirs.side.BlockTokens)
		if count > grant.MaxGrantBlocks {
			return nil, nil, nil, fmt.Errorf("tokens up to %d: %w", tokens, grant.ErrRange)
		}
		for i := range uint32(count) {
			places = append(places, i)
		}
	}
	use, err := w.peer.open(w.reference, a.name, w.rights, places)
	if err != nil {
		return nil, nil, nil, err
	}
	blocks = use.Blocks()
	if err := w.peer.closeUse(use); err != nil {
		return nil, nil, nil, err
	}
	if w.theirs, err = w.peer.cacheOf(w.reference.Cache); err != nil {
		return nil, nil, nil, err
	}
	src, dst := w.theirs.side, w.own.side
	if w.rights == grant.Write {
		src, dst = dst, src
	}
	if p, err = paged.NewPlan(src, dst); err != nil {
		return nil, nil, nil, err
	}
	w.mover, err = a.node.movers.get(src.Type, dst.Type, s.Scale)
	return p, places, blocks, err
}

// grantedCache is the cache of a reference that claims to be of this agent. Whether it is valid is seen when it is opened.
func (a *Agent) grantedCache(r grant.Reference) (*cache, error) {
	if r.Incarnation != a.incarnation {
		return nil, grant.ErrForeign
	}
	c, err := a.cacheOf(r.Cache)
	if err != nil {
		return nil, grant.ErrForged // the same as for any other reference that was made up
	}
	return c, nil
}

func (w *what) setLayers(p *paged.Plan, s *kvwire.Submission) error {
	first, count := p.Layers()
	w.firstLayer, w.layers = first, count
	if s.Layers == 0 {
		return nil
	}
	if int64(s.FirstLayer) < int64(first) || int64(s.FirstLayer)+int64(s.Layers) > int64(first+count) {
		return fmt.Errorf("layers %d to %d: both caches have %d to %d", s.FirstLayer, int64(s.FirstLayer)+int64(s.Layers)-1, first, first+count-1)
	}
	w.firstLayer, w.layers = int(s.FirstLayer), int(s.Layers)
	return nil
}

// cut checks the blocks, and cuts the tokens into chunks.
func (w *what) cut(p *paged.Plan, s *kvwire.Submission, own, places, blocks []uint32) error {
	ours := list{own, int(s.OwnToken), w.own.side.BlockTokens}
	theirs := list{blocks, int(s.PeerToken), w.theirs.side.BlockTokens}
	if err := p.Check(w.request(ours, theirs, int(s.Tokens))); err != nil {
		return err
	}
	step := chunkTokens(p.TokenBytes(), ours.blockTokens, theirs.blockTokens)
	for done := 0; done < int(s.Tokens); done += step {
		n := min(step, int(s.Tokens)-done)
		ownFrom, ownTo := ours.span(done, n)
		from, to := theirs.span(done, n)
		prepared, err := p.Prepare(w.request(ours.cut(done, n), theirs.cut(done, n), n))
		if err != nil {
			return err
		}
		w.chunks = append(w.chunks, chunk{places: places[from:to], prepared: prepared, first: ownFrom, blocks: ownTo - ownFrom})
	}
	return nil
}

// request is the request for some tokens, in the direction of the transfer.
func (w *what) request(ours, theirs list, tokens int) paged.Request {
	if w.rights == grant.Write {
		return paged.Request{Src: ours.blocks, Dst: theirs.blocks, SrcToken: ours.token, DstToken: theirs.token, Tokens: tokens}
	}
	return paged.Request{Src: theirs.blocks, Dst: ours.blocks, SrcToken: theirs.token, DstToken: ours.token, Tokens: tokens}
}

// list is blocks of one side, and where its tokens begin.
type list struct {
	blocks      []uint32
	token       int
	blockTokens int
}

// span is in which of the blocks n tokens are, behind the first done ones.
func (l list) span(done, n int) (from, to int) {
	return (l.token + done) / l.blockTokens, (l.token + done + n + l.blockTokens - 1) / l.blockTokens
}

// cut is the list of the blocks in which n tokens are, behind the first done ones.
func (l list) cut(done, n int) list {
	from, to := l.span(done, n)
	return list{l.blocks[from:to], (l.token + done) % l.blockTokens, l.blockTokens}
}

// chunkTokens is how many tokens of a layer make a piece: whole blocks of both sides, if they begin together.
func chunkTokens(tokenBytes uint64, ownTokens, peerTokens int) int {
	unit := max(ownTokens, peerTokens)
	if unit%min(ownTokens, peerTokens) != 0 {
		unit = ownTokens * peerTokens
	}
	units := uint64(pieceBytes) / (tokenBytes * uint64(unit))
	return unit * int(max(units, 1))
}
