// Package models has the shapes of language models: the numbers that decide how many bytes a decode step moves.
//
// It owns a built-in table (models.json) and a parser for Hugging Face's config.json. It must never fetch anything, run a model's
// code, or guess a number that is neither in the config nor defined by a Hugging Face default.
// It trusts only the built-in table. A config may come from anywhere, so its size, its nesting and its numbers are bounded
// before use.
package models

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Shape has the numbers of a model that matter for communication. Zero means that the model has no such part, or, in the built-in
// table, that the number is not used.
type Shape struct {
	Name string `json:"name"`

	Hidden int `json:"hidden"` // elements of one token's activation; the row of every tensor-parallel all-reduce
	Layers int `json:"layers"`
	Vocab  int `json:"vocab,omitempty"`

	Heads   int `json:"heads"`
	KVHeads int `json:"kv_heads,omitempty"` // 0 with latent attention (KVLoraRank > 0), which caches no heads
	HeadDim int `json:"head_dim,omitempty"` // 0 with latent attention

	KVLoraRank    int `json:"kv_lora_rank,omitempty"`     // latent attention: cached elements a token and layer
	QKRopeHeadDim int `json:"qk_rope_head_dim,omitempty"` // latent attention: cached elements of the rotary part

	Experts         int `json:"experts,omitempty"` // routed experts a layer; 0: a dense model
	TopK            int `json:"topk,omitempty"`    // routed experts a token
	Groups          int `json:"groups,omitempty"`  // expert groups of the router; 0: the router knows no groups
	TopKGroups      int `json:"topk_groups,omitempty"`
	SharedExperts   int `json:"shared_experts,omitempty"`
	MoELayers       int `json:"moe_layers,omitempty"` // layers that have routed experts
	MoEIntermediate int `json:"moe_intermediate,omitempty"`
}

//go:embed models.json
var builtinJSON []byte

// builtin panics on a broken table, since that is no input: the tests of this package would fail.
var builtin = sync.OnceValue(func() map[string]Shape {
	dec := json.NewDecoder(bytes.NewReader(builtinJSON))
	dec.DisallowUnknownFields()
	table := map[string]Shape{}
	if err := dec.Decode(&table); err != nil {
		panic("models: embedded models.json: " + err.Error())
	}
	for name, s := range table {
		s.Name = name
		table[name] = s
	}
	return table
})

// Named returns a built-in shape. For an unknown name the error suggests the nearest known one.
func Named(name string) (Shape, error) {
	if s, ok := builtin()[name]; ok {
		return s, nil
	}
	hint := ""
	if near := nearest(name, Names()); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return Shape{}, fmt.Errorf("unknown model %.80q%s (known: %s; any other: give its Hugging Face config.json)",
		name, hint, strings.Join(Names(), ", "))
}

// Names lists the built-in models in alphabetical order.
func Names() []string {
	names := make([]string, 0, len(builtin()))
	for name := range builtin() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
