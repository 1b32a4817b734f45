package models

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// The keys that model families use for the same number. The first one that is present and not null counts.
var (
	hiddenKeys       = []string{"hidden_size", "n_embd", "d_model"}
	layersKeys       = []string{"num_hidden_layers", "n_layer", "n_layers", "num_layers"}
	headsKeys        = []string{"num_attention_heads", "n_head", "n_heads", "num_heads"}
	kvHeadsKeys      = []string{"num_key_value_heads"}
	headDimKeys      = []string{"head_dim"}
	vocabKeys        = []string{"vocab_size"}
	kvLoraKeys       = []string{"kv_lora_rank"}
	ropeDimKeys      = []string{"qk_rope_head_dim"}
	expertsKeys      = []string{"num_experts", "num_local_experts", "n_routed_experts"}
	topKKeys         = []string{"num_experts_per_tok", "experts_per_token"}
	groupsKeys       = []string{"n_group"}
	topKGroupsKeys   = []string{"topk_group"}
	sharedKeys       = []string{"n_shared_experts"}
	expertSizeKeys   = []string{"moe_intermediate_size", "intermediate_size"}
	denseFirstKeys   = []string{"first_k_dense_replace"}
	everyFromZero    = []string{"moe_layer_freq"}                                   // DeepSeek: layers 0, f, 2f, …
	everyFromOne     = []string{"decoder_sparse_step", "interleave_moe_layer_step"} // Qwen, Llama 4: layers s-1, 2s-1, …
	denseLayerListed = "mlp_only_layers"
)

// config is one JSON object of a config.json. It keeps the first error, which is checked after the whole shape is read.
type config struct {
	keys   map[string]json.RawMessage
	prefix string // "text_config." for a nested object; for errors
	err    error
}

// find returns the first of the names that is present and not null, and its value.
func (c *config) find(names []string) (name string, value json.RawMessage, ok bool) {
	for _, n := range names {
		if v, present := c.keys[n]; present && string(v) != "null" {
			return n, v, true
		}
	}
	return names[0], nil, false
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// need reads an integer that must be present.
func (c *config) need(names []string, low, high int) int {
	if _, _, ok := c.find(names); !ok {
		found := ""
		if c.prefix != "" {
			found = " in " + strings.TrimSuffix(c.prefix, ".")
		}
		c.fail("no %s%s; expected an integer in %d..%d", strings.Join(names, ", "), found, low, high)
		return low
	}
	return c.optional(names, low, high, low)
}

// optional reads an integer. It returns absent where it is missing or null.
func (c *config) optional(names []string, low, high, absent int) int {
	name, value, ok := c.find(names)
	if !ok {
		return absent
	}
	n, err := strconv.Atoi(string(value))
	if err != nil || n < low || n > high {
		c.fail("%s%s is %s; expected an integer in %d..%d", c.prefix, name, brief(value), low, high)
		return low
	}
	return n
}

// brief shows a wrong value in one short line.
func brief(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	}
	return fmt.Sprintf("%.40s", value)
}

func (c *config) shape() Shape {
	s := Shape{
		Hidden: c.need(hiddenKeys, 1, maxHidden),
		Layers: c.need(layersKeys, 1, maxLayers),
		Heads:  c.need(headsKeys, 1, maxHeads),
		Vocab:  c.optional(vocabKeys, 1, maxVocab, 0),
	}
	c.attention(&s)
	c.experts(&s)
	return s
}

// attention fills in the shape of a token's cache. With latent attention the cache is a latent vector and a rotary part. Then
// num_key_value_heads and head_dim, if present, do not matter for the cache.
func (c *config) attention(s *Shape) {
	if s.KVLoraRank = c.optional(kvLoraKeys, 1, maxHidden, 0); s.KVLoraRank > 0 {
		s.QKRopeHeadDim = c.need(ropeDimKeys, 1, maxHeadDim)
		return
	}
	s.KVHeads = c.optional(kvHeadsKeys, 1, s.Heads, s.Heads)
	s.HeadDim = c.optional(headDimKeys, 1, maxHeadDim, s.Hidden/s.Heads)
	if _, _, given := c.find(headDimKeys); !given && s.Hidden%s.Heads != 0 {
		c.fail("no %shead_dim, and hidden size %d is not a multiple of %d heads; give head_dim, or a multiple",
			c.prefix, s.Hidden, s.Heads)
	}
}

// experts fills in the mixture of experts. A model with at most one expert is dense.
func (c *config) experts(s *Shape) {
	n := c.optional(expertsKeys, 0, maxExperts, 0)
	if n <= 1 {
		return
	}
	s.Experts = n
	s.TopK = c.need(topKKeys, 1, n)
	s.SharedExperts = c.optional(sharedKeys, 0, maxExperts, 0)
	s.MoEIntermediate = c.optional(expertSizeKeys, 1, maxIntermediate, 0)
	s.MoELayers = c.moeLayers(s.Layers)
	// One group means no groups (Kimi K2).
	if g := c.optional(groupsKeys, 1, n, 1); g > 1 {
		s.Groups = g
		s.TopKGroups = c.need(topKGroupsKeys, 1, g)
	}
}

// moeLayers counts the layers with routed experts, by the rules of the model families that have dense layers too.
func (c *config) moeLayers(layers int) int {
	first := c.optional(denseFirstKeys, 0, layers, 0)
	stepOne := c.optional(everyFromOne, 1, layers, 1)
	stepZero, perLayer := c.moeFreq(layers)
	dense := c.denseLayers(layers)
	count := 0
	for i := range layers {
		sparse := i >= first && (i+1)%stepOne == 0 && i%stepZero == 0 && !dense[i]
		if perLayer != nil {
			sparse = perLayer[i] != 0
		}
		if sparse {
			count++
		}
	}
	return count
}

// moeFreq reads moe_layer_freq: a step, or a list with one 0 or 1 a layer.
func (c *config) moeFreq(layers int) (step int, perLayer []int) {
	name, value, ok := c.find(everyFromZero)
	if !ok || value[0] != '[' {
		return c.optional(everyFromZero, 1, layers, 1), nil
	}
	if err := json.Unmarshal(value, &perLayer); err != nil || len(perLayer) != layers {
		c.fail("%s%s is a list; expected %d integers, one a layer", c.prefix, name, layers)
		return 1, nil
	}
	return 1, perLayer
}

// denseLayers reads the list of layers without experts.
func (c *config) denseLayers(layers int) map[int]bool {
	name, value, ok := c.find([]string{denseLayerListed})
	if !ok {
		return nil
	}
	var list []int
	if err := json.Unmarshal(value, &list); err != nil {
		c.fail("%s%s is %s; expected a list of layer numbers", c.prefix, name, brief(value))
		return nil
	}
	dense := map[int]bool{}
	for _, i := range list {
		if i < 0 || i >= layers {
			c.fail("%s%s names layer %d; expected numbers in 0..%d", c.prefix, name, i, layers-1)
			return nil
		}
		dense[i] = true
	}
	return dense
}
