package models

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestBuiltinShapesMatchTheSharedTable(t *testing.T) {
	want := map[string]Shape{
		"llama-3-8b":  {Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Vocab: 128256},
		"llama-3-70b": {Hidden: 8192, Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128, Vocab: 128256},
		"mixtral-8x7b": {Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Experts: 8, TopK: 2,
			MoELayers: 32, MoEIntermediate: 14336},
		"qwen3-30b-a3b": {Hidden: 2048, Layers: 48, Heads: 32, KVHeads: 4, HeadDim: 128, Experts: 128, TopK: 8,
			MoELayers: 48, MoEIntermediate: 768},
		"qwen3-235b-a22b": {Hidden: 4096, Layers: 94, Heads: 64, KVHeads: 4, HeadDim: 128, Experts: 128, TopK: 8,
			MoELayers: 94, MoEIntermediate: 1536},
		"gpt-oss-120b": {Hidden: 2880, Layers: 36, Heads: 64, KVHeads: 8, HeadDim: 64, Experts: 128, TopK: 4,
			MoELayers: 36, MoEIntermediate: 2880},
		"deepseek-v3": {Hidden: 7168, Layers: 61, Heads: 128, KVLoraRank: 512, QKRopeHeadDim: 64, Experts: 256, TopK: 8,
			Groups: 8, TopKGroups: 4, SharedExperts: 1, MoELayers: 58, MoEIntermediate: 2048},
		"kimi-k2": {Hidden: 7168, Layers: 61, Heads: 64, KVLoraRank: 512, QKRopeHeadDim: 64, Experts: 384, TopK: 8,
			SharedExperts: 1, MoELayers: 60, MoEIntermediate: 2048},
	}
	if got := Names(); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Fatalf("Names() = %v", got)
	}
	for name, w := range want {
		w.Name = name
		if got, err := Named(name); err != nil || got != w {
			t.Errorf("Named(%q) = %+v, %v; want %+v", name, got, err, w)
		}
	}
}

func TestShapeIsWrittenWithTheKeysOfTheTable(t *testing.T) {
	s, err := Named("llama-3-8b")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"llama-3-8b","hidden":4096,"layers":32,"vocab":128256,"heads":32,"kv_heads":8,"head_dim":128}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestUnknownModelNamesTheNearestAndListsAll(t *testing.T) {
	for asked, suggestion := range map[string]string{
		"llama3-8b":                `did you mean "llama-3-8b"?`,
		"Llama-3-70B":              `did you mean "llama-3-70b"?`,
		"deepseek_v3":              `did you mean "deepseek-v3"?`,
		"kimi":                     `did you mean "kimi-k2"?`,
		"":                         "",
		"zzzzzzzz":                 "",
		strings.Repeat("y", 1<<20): "",
	} {
		_, err := Named(asked)
		if err == nil {
			t.Fatalf("Named(%.20q) succeeded", asked)
		}
		msg := err.Error()
		if !strings.Contains(msg, suggestion) || (suggestion == "") == strings.Contains(msg, "did you mean") {
			t.Errorf("Named(%.20q): %q, want suggestion %q", asked, msg, suggestion)
		}
		for _, name := range Names() {
			if !strings.Contains(msg, name) {
				t.Errorf("Named(%.20q): %q does not list %s", asked, msg, name)
			}
		}
		if len(msg) > 1000 {
			t.Errorf("Named(%.20q): error of %d bytes", asked, len(msg))
		}
	}
}
