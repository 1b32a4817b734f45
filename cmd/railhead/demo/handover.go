package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/models"
)

// HandOver is the transfer of a sequence's KV cache from a prefill agent to the ranks of decode.
type HandOver struct {
	Tokens  int     `json:"tokens"`
	Ranks   int     `json:"ranks"` // of decode
	Bytes   uint64  `json:"bytes"`
	Us      float64 `json:"us"`
	GBs     float64 `json:"gb_s"`
	Checked int     `json:"checked"` // elements
	Wrong   int     `json:"wrong"`
}

// The hand-over: a sequence in blocks of the prefill process, which has all heads, goes to decode ranks whose blocks have another size.
const (
	handOverBytes = 64 << 20 // at most so many of both caches' sequence
	prefillBlock  = 16       // tokens
	decodeBlock   = 32
	decodeRanks   = 2
	mostTokens    = 1024
)

// kvShape is what a model caches for a token and layer.
type kvShape struct{ layers, parts, heads, dim int }

func kvShapeOf(s models.Shape) kvShape {
	if s.KVLoraRank > 0 {
		return kvShape{s.Layers, 1, 1, s.KVLoraRank + s.QKRopeHeadDim}
	}
	return kvShape{s.Layers, 2, s.KVHeads, s.HeadDim}
}

// tokens is how many tokens are handed over: whole blocks of both sides.
func (k kvShape) tokens() int {
	each := k.layers * k.parts * k.heads * k.dim * 2
	return max(min(handOverBytes/each, mostTokens)/decodeBlock, 1) * decodeBlock
}

// cacheSide is an agent with a cache.
type cacheSide struct {
	agent       *client.KVAgent
	memory      []byte
	cache       client.KVCache
	kvShape     // heads: this side's
	firstHead   int
	blocks      []uint32 // of the sequence, in its order
	blockTokens int
}

// handOver runs a hand-over and checks every element.
func handOver(ctx context.Context, socket string, model models.Shape, timeout time.Duration) (h *HandOver, failed error) {
	shape := kvShapeOf(model)
	tokens := shape.tokens()
	session, err := client.Connect(socket, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = session.Close() }()
	prefill, err := newCacheSide(session, "prefill", shape, 0, tokens, prefillBlock, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = prefill.agent.Destroy() }()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for i := 0; i+8 <= len(prefill.memory); i += 8 {
		binary.LittleEndian.PutUint64(prefill.memory[i:], random.Uint64())
	}
	h = &HandOver{Tokens: tokens}
	ranks := min(decodeRanks, shape.heads) // MLA has one head, which every rank would have
	h.Ranks = ranks
	for r := range ranks {
		own := shape
		own.heads = shape.heads / ranks
		if err := h.take(ctx, session, prefill, fmt.Sprintf("decode-%d", r), own, r*own.heads, timeout); err != nil {
			return h, err
		}
	}
	h.GBs = float64(h.Bytes) / h.Us / 1e3
	return h, nil
}

// take reads a decode rank's heads of the sequence.
func (h *HandOver) take(ctx context.Context, session *client.Session, prefill *cacheSide, name string, shape kvShape, firstHead int, timeout time.Duration) error {
	decode, err := newCacheSide(session, name, shape, firstHead, h.Tokens, decodeBlock, timeout)
	if err != nil {
		return err
	}
	defer func() { _ = decode.agent.Destroy() }()
	for i := range decode.memory {
		decode.memory[i] = 0xa5
	}
	// What prefill sends to decode with the request.
	reference, err := prefill.agent.Grant(prefill.cache, prefill.blocks, client.KVRead, timeout, name)
	if err != nil {
		return err
	}
	begin := time.Now()
	_, err = decode.agent.Submit(client.KVTransfer{
		Op: client.KVRead, Cache: decode.cache, Peer: "prefill", Reference: reference, Blocks: decode.blocks, Timeout: timeout, Notification: []byte("taken"),
	})
	if err != nil {
		return err
	}
	e, err := awaitEnd(ctx, decode.agent, timeout)
	if err != nil {
		return err
	}
	h.Us += float64(time.Since(begin).Nanoseconds()) / 1e3
	h.Bytes += e.Bytes
	h.compare(prefill, decode)
	return prefill.agent.Revoke(reference) // the blocks are prefill's again
}

func awaitEnd(ctx context.Context, a *client.KVAgent, timeout time.Duration) (client.KVEvent, error) {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		if err := ctx.Err(); err != nil {
			return client.KVEvent{}, err
		}
		events, err := a.Poll(100 * time.Millisecond)
		if err != nil {
			return client.KVEvent{}, err
		}
		if len(events) > 0 {
			return events[0], events[0].Err()
		}
	}
	return client.KVEvent{}, fmt.Errorf("the KV transfer has not ended within %v", timeout)
}

// newCacheSide makes an agent whose cache has room for the sequence, in blocks that it uses in reverse order.
func newCacheSide(session *client.Session, name string, shape kvShape, firstHead, tokens, blockTokens int, timeout time.Duration) (*cacheSide, error) {
	a, err := session.KVAgent(name, timeout)
	if err != nil {
		return nil, err
	}
	s := &cacheSide{agent: a, kvShape: shape, firstHead: firstHead, blockTokens: blockTokens}
	count := tokens / blockTokens
	for i := range count {
		s.blocks = append(s.blocks, uint32(count-1-i))
	}
	var region client.KVRegion
	if s.memory, region, err = a.Alloc(shape.layers * shape.parts * tokens * shape.heads * shape.dim * 2); err == nil {
		config := client.KVCacheConfig{
			Layers: shape.layers, Parts: shape.parts, Blocks: count, BlockTokens: blockTokens, Heads: shape.heads, HeadDim: shape.dim, Dtype: client.BF16,
			FirstHead: firstHead, Form: client.KVPartsFirst, Order: client.KVHND,
		}
		for l := range shape.layers {
			config.Tensors = append(config.Tensors, client.KVPlace{Region: region, Offset: uint64(l * len(s.memory) / shape.layers)})
		}
		s.cache, err = a.Cache(config)
	}
	if err != nil {
		_ = a.Destroy()
		return nil, err
	}
	return s, nil
}

// row is where the elements of a head of a token are.
func (s *cacheSide) row(layer, part, token, head int) []byte {
	block := int(s.blocks[token/s.blockTokens])
	at := layer*s.parts + part
	at = at*len(s.blocks) + block
	at = at*s.heads + head - s.firstHead
	at = at*s.blockTokens + token%s.blockTokens
	return s.memory[at*s.dim*2:][:s.dim*2]
}

// compare compares every element that decode has with prefill's.
func (h *HandOver) compare(prefill, decode *cacheSide) {
	for layer := range decode.layers {
		for part := range decode.parts {
			for token := range h.Tokens {
				for head := decode.firstHead; head < decode.firstHead+decode.heads; head++ {
					a, b := prefill.row(layer, part, token, head), decode.row(layer, part, token, head)
					h.Checked += decode.dim
					if string(a) == string(b) {
						continue
					}
					for i := 0; i < len(a); i += 2 {
						if a[i] != b[i] || a[i+1] != b[i+1] {
							h.Wrong++
						}
					}
				}
			}
		}
	}
}

func (h *HandOver) write(out io.Writer) {
	_, _ = fmt.Fprintf(out, "\nKV hand-over, prefill to %s, blocks of %d tokens into blocks of %d, by the node's proxy, in host memory:\n"+
		"%d tokens, %d bytes in %.0f us (%.2f GB/s), %d elements checked, %d wrong\n", cli.Count(h.Ranks, "decode rank"), prefillBlock, decodeBlock, h.Tokens, h.Bytes, h.Us, h.GBs, h.Checked, h.Wrong)
}
