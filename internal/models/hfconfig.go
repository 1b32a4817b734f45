package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"unicode"
)

// Bounds of the numbers of a config. They are far above those of any model, and products of two of them fit into 64 bits, so that
// sizes computed from a shape cannot overflow.
const (
	maxConfigBytes  = 4 << 20
	maxHidden       = 1 << 20
	maxLayers       = 10_000
	maxHeads        = 1 << 16
	maxHeadDim      = 1 << 16
	maxVocab        = 1 << 28
	maxExperts      = 1 << 16
	maxIntermediate = 1 << 24
	maxNameBytes    = 128
)

// nestedKeys are the keys of the language model's config in multimodal configs, most common first.
var nestedKeys = []string{"text_config", "llm_config", "language_config"}

// LoadHFConfig reads the Hugging Face config.json at path.
func LoadHFConfig(path string) (Shape, error) {
	data, err := readBounded(path)
	if err != nil {
		return Shape{}, fmt.Errorf("read model config: %w", err)
	}
	s, err := ParseHFConfig(data)
	if err != nil {
		return Shape{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// readBounded checks the type of the file first: opening a pipe without a writer would block.
func readBounded(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; give the config.json itself", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than is allowed, so that the parser can detect a file that is too large.
	return io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
}

// ParseHFConfig parses a Hugging Face config.json. Every error names the key and the value that was expected.
func ParseHFConfig(data []byte) (Shape, error) {
	if len(data) > maxConfigBytes {
		return Shape{}, fmt.Errorf("parse model config: larger than %d bytes; is this a config.json?", maxConfigBytes)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return Shape{}, fmt.Errorf("parse model config: not a JSON object: %w", err)
	}
	if top == nil {
		return Shape{}, errors.New("parse model config: it is null; expected a JSON object with hidden_size and so on")
	}
	cfg := languageModel(top)
	s := cfg.shape()
	if cfg.err != nil {
		return Shape{}, fmt.Errorf("parse model config: %w", cfg.err)
	}
	s.Name = configName(top, cfg.keys)
	return s, nil
}

// languageModel returns the object that describes the language model: a nested object with a hidden size, or else the top one. A
// nested object without a hidden size is a stub and is ignored.
func languageModel(top map[string]json.RawMessage) *config {
	for _, key := range nestedKeys {
		var nested map[string]json.RawMessage
		if json.Unmarshal(top[key], &nested) != nil {
			continue
		}
		cfg := &config{keys: nested, prefix: key + "."}
		if _, _, ok := cfg.find(hiddenKeys); ok {
			return cfg
		}
	}
	return &config{keys: top}
}

// configName is the last element of the model's path or id, or else its type, or else its class.
func configName(objects ...map[string]json.RawMessage) string {
	for _, key := range []string{"_name_or_path", "model_type", "architectures"} {
		for _, o := range objects {
			var one string
			if json.Unmarshal(o[key], &one) != nil {
				var list []string
				if json.Unmarshal(o[key], &list) != nil || len(list) == 0 {
					continue
				}
				one = list[0]
			}
			if key == "_name_or_path" && one != "" {
				one = path.Base(one)
			}
			if printableName(one) {
				return one
			}
		}
	}
	return "unnamed"
}

// printableName says whether a name can be printed unchanged, on a terminal and in a table.
func printableName(s string) bool {
	return strings.Trim(s, "./ ") != "" && len(s) <= maxNameBytes &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
}
