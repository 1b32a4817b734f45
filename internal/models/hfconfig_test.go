package models

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func readConfig(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The table and the reader were written independently, and must agree on the models that both know.
func TestConfigOfABuiltinModelGivesTheBuiltinShape(t *testing.T) {
	for name, configName := range map[string]string{
		"llama-3-8b": "llama", "mixtral-8x7b": "mixtral-8x7b", "qwen3-30b-a3b": "qwen3_moe",
		"deepseek-v3": "deepseek_v3", "kimi-k2": "kimi_k2", "gpt-oss-120b": "gpt_oss",
	} {
		want, err := Named(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseHFConfig(readConfig(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Name != configName {
			t.Errorf("%s: name %q, want %q", name, got.Name, configName)
		}
		if got.Vocab == 0 {
			t.Errorf("%s: no vocabulary size", name)
		}
		if want.Vocab == 0 { // the table leaves it out for most models
			got.Vocab = 0
		}
		got.Name = name
		if got != want {
			t.Errorf("%s: config gives %+v\nthe table has %+v", name, got, want)
		}
	}
}

func TestConfigFamiliesAreUnderstood(t *testing.T) {
	for name, want := range map[string]Shape{
		"gpt2": {Name: "gpt2", Hidden: 768, Layers: 12, Heads: 12, KVHeads: 12, HeadDim: 64, Vocab: 50257},
		"multimodal": {Name: "llama4", Hidden: 5120, Layers: 48, Heads: 40, KVHeads: 8, HeadDim: 128, Vocab: 202048,
			Experts: 128, TopK: 1, MoELayers: 24, MoEIntermediate: 8192},
	} {
		got, err := LoadHFConfig(filepath.Join("testdata", name+".json"))
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, want)
		}
	}
}

// dense is a minimal valid config with room for more keys.
func dense(more string) string {
	return `{"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4` + more + `}`
}

func TestDetailsOfAConfig(t *testing.T) {
	moe := `,"num_experts":8,"num_experts_per_tok":2`
	for name, c := range map[string]struct {
		config string
		get    func(Shape) any
		want   any
	}{
		"key and value heads default to heads": {dense(``), func(s Shape) any { return s.KVHeads }, 4},
		"null counts as absent":                {dense(`,"num_key_value_heads":null`), func(s Shape) any { return s.KVHeads }, 4},
		"head size defaults to the quotient":   {dense(``), func(s Shape) any { return s.HeadDim }, 16},
		"a given head size wins":               {dense(`,"head_dim":48`), func(s Shape) any { return s.HeadDim }, 48},
		"d_model is a hidden size": {`{"d_model":32,"n_layers":2,"n_heads":2}`,
			func(s Shape) any { return [3]int{s.Hidden, s.Layers, s.Heads} }, [3]int{32, 2, 2}},
		"one expert is a dense model":      {dense(`,"num_local_experts":1`), func(s Shape) any { return [2]int{s.Experts, s.MoELayers} }, [2]int{0, 0}},
		"every second layer from one":      {dense(moe + `,"decoder_sparse_step":2`), func(s Shape) any { return s.MoELayers }, 2},
		"every third layer from zero":      {dense(moe + `,"moe_layer_freq":3`), func(s Shape) any { return s.MoELayers }, 2},
		"a list says which layers":         {dense(moe + `,"moe_layer_freq":[0,1,1,1]`), func(s Shape) any { return s.MoELayers }, 3},
		"dense layers are named":           {dense(moe + `,"mlp_only_layers":[0,3]`), func(s Shape) any { return s.MoELayers }, 2},
		"the path's last part is a name":   {dense(`,"_name_or_path":"org/Model-7B"`), func(s Shape) any { return s.Name }, "Model-7B"},
		"an empty path is no name":         {dense(`,"_name_or_path":"","model_type":"m"`), func(s Shape) any { return s.Name }, "m"},
		"a dot is no name":                 {dense(`,"_name_or_path":"./","model_type":"m"`), func(s Shape) any { return s.Name }, "m"},
		"the class is the last resort":     {dense(`,"architectures":["LmForX"]`), func(s Shape) any { return s.Name }, "LmForX"},
		"terminal escapes are no name":     {dense(`,"model_type":"\u001b[2J"`), func(s Shape) any { return s.Name }, "unnamed"},
		"a nested stub is passed over":     {dense(`,"text_config":{"model_type":"x"}`), func(s Shape) any { return s.Hidden }, 64},
		"a nested name serves":             {`{"text_config":` + dense(`,"model_type":"inner"`) + `}`, func(s Shape) any { return s.Name }, "inner"},
		"other nested names are known too": {`{"llm_config":` + dense(``) + `}`, func(s Shape) any { return s.Hidden }, 64},
	} {
		s, err := ParseHFConfig([]byte(c.config))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := c.get(s); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestConfigErrorsNameTheKeyAndWhatIsExpected(t *testing.T) {
	moe := `,"num_experts":8`
	for _, c := range []struct{ config, want string }{
		{``, "not a JSON object"},
		{`[]`, "not a JSON object"},
		{`null`, "null"},
		{`{"hidden_size":1} x`, "not a JSON object"},
		{`{}`, "no hidden_size, n_embd, d_model; expected an integer in 1..1048576"},
		{`{"hidden_size":64}`, "no num_hidden_layers"},
		{`{"hidden_size":64,"num_hidden_layers":1}`, "no num_attention_heads"},
		{`{"hidden_size":0,"num_hidden_layers":1,"num_attention_heads":1}`, "hidden_size is 0; expected an integer in 1..1048576"},
		{`{"n_embd":1048577,"n_layer":1,"n_head":1}`, "n_embd is 1048577; expected an integer in 1..1048576"},
		{`{"hidden_size":"64","num_hidden_layers":1,"num_attention_heads":1}`, `hidden_size is "64"; expected an integer`},
		{`{"hidden_size":64.5,"num_hidden_layers":1,"num_attention_heads":1}`, "hidden_size is 64.5; expected an integer"},
		{`{"hidden_size":99999999999999999999,"num_hidden_layers":1,"num_attention_heads":1}`, "expected an integer in 1..1048576"},
		{`{"hidden_size":64,"num_hidden_layers":10001,"num_attention_heads":1}`, "num_hidden_layers is 10001; expected an integer in 1..10000"},
		{`{"hidden_size":64,"num_hidden_layers":1,"num_attention_heads":[4,8]}`, "num_attention_heads is a list; expected an integer"},
		{`{"hidden_size":65,"num_hidden_layers":1,"num_attention_heads":4}`, "no head_dim"},
		{dense(`,"num_key_value_heads":5`), "num_key_value_heads is 5; expected an integer in 1..4"},
		{dense(`,"vocab_size":-1`), "vocab_size is -1; expected an integer in 1..268435456"},
		{dense(`,"head_dim":{}`), "head_dim is an object; expected an integer"},
		{dense(`,"kv_lora_rank":512`), "no qk_rope_head_dim"},
		{dense(moe), "no num_experts_per_tok, experts_per_token; expected an integer in 1..8"},
		{dense(moe + `,"num_experts_per_tok":9`), "num_experts_per_tok is 9; expected an integer in 1..8"},
		{dense(moe + `,"num_experts_per_tok":1,"n_group":4`), "no topk_group; expected an integer in 1..4"},
		{dense(moe + `,"num_experts_per_tok":1,"moe_layer_freq":[1]`), "moe_layer_freq is a list; expected 4 integers"},
		{dense(moe + `,"num_experts_per_tok":1,"decoder_sparse_step":0`), "decoder_sparse_step is 0; expected an integer in 1..4"},
		{dense(moe + `,"num_experts_per_tok":1,"mlp_only_layers":[4]`), "mlp_only_layers names layer 4; expected numbers in 0..3"},
		{dense(moe + `,"num_experts_per_tok":1,"mlp_only_layers":7`), "mlp_only_layers is 7; expected a list"},
		{`{"text_config":{"hidden_size":64}}`, "no num_hidden_layers, n_layer, n_layers, num_layers in text_config"},
		{`{"text_config":{"hidden_size":-1,"n_layer":1,"n_head":1}}`, "text_config.hidden_size is -1"},
		{strings.Repeat(" ", maxConfigBytes+1), "larger than 4194304 bytes"},
	} {
		s, err := ParseHFConfig([]byte(c.config))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: got %+v, %v; want %q", c.config, s, err, c.want)
		} else if s != (Shape{}) {
			t.Errorf("%.80s: a shape came with the error: %+v", c.config, s)
		}
	}
}

func TestLoadRefusesWhatIsNotAReasonableFile(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.json")
	if err := os.WriteFile(large, []byte("{}"+strings.Repeat(" ", maxConfigBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "absent.json"): "no such file",
		dir:                               "not a regular file",
		pipe:                              "not a regular file",
		large:                             "larger than",
		bad:                               "bad.json: parse model config: no hidden_size",
	} {
		if _, err := LoadHFConfig(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func FuzzParseHFConfig(f *testing.F) {
	for _, name := range []string{"llama-3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "kimi-k2", "gpt-oss-120b", "gpt2", "multimodal"} {
		f.Add(readConfig(f, name))
	}
	f.Add([]byte(`{"hidden_size":64,"n_layer":4,"n_head":4,"num_experts":2,"num_experts_per_tok":1,"moe_layer_freq":[0,1,0,1]}`))
	f.Add([]byte(`{"text_config":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseHFConfig(data)
		if err != nil {
			if s != (Shape{}) {
				t.Fatalf("a shape came with the error %v", err)
			}
			return
		}
		within := func(what string, v, low, high int) {
			if v < low || v > high {
				t.Errorf("%s is %d, outside %d..%d", what, v, low, high)
			}
		}
		within("hidden", s.Hidden, 1, maxHidden)
		within("layers", s.Layers, 1, maxLayers)
		within("heads", s.Heads, 1, maxHeads)
		within("kv heads", s.KVHeads, 0, s.Heads)
		within("vocab", s.Vocab, 0, maxVocab)
		within("experts", s.Experts, 0, maxExperts)
		within("top k", s.TopK, 0, s.Experts)
		within("groups", s.Groups, 0, s.Experts)
		within("moe layers", s.MoELayers, 0, s.Layers)
		if (s.KVLoraRank > 0) == (s.KVHeads > 0 && s.HeadDim > 0) {
			t.Errorf("neither or both kinds of cache: %+v", s)
		}
		if !printableName(s.Name) {
			t.Errorf("name %q", s.Name)
		}
	})
}
