package topo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// jsonVersion is the version of our JSON. An incompatible change must raise it.
const jsonVersion = 1

type jsonFile struct {
	Version int `json:"version"`
	// Fingerprint is for people who read the file. ReadJSON ignores it: it is computed from the graph.
	Fingerprint string `json:"fingerprint,omitempty"`
	Graph
}

// ReadJSON reads a graph that WriteJSON or a person has written.
func ReadJSON(r io.Reader) (*Graph, error) {
	raw, err := readBounded(r)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var f jsonFile
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("topology JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("topology JSON: there is more text after the object; remove it")
	}
	if f.Version != jsonVersion {
		return nil, fmt.Errorf("topology JSON: version %d; this program reads version %d", f.Version, jsonVersion)
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	return &f.Graph, nil
}

// WriteJSON writes a graph completely.
func (g *Graph) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(jsonFile{Version: jsonVersion, Fingerprint: g.Fingerprint(), Graph: *g})
}

func readBounded(r io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxInputBytes+1))
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	if len(raw) > maxInputBytes {
		return nil, fmt.Errorf("topology: more than %d bytes", maxInputBytes)
	}
	return raw, nil
}
