package topo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const maxXMLAttributes = 32

// element is an XML element without text, which NCCL's XML does not use.
type element struct {
	name     string
	line     int
	attrs    map[string]string
	children []*element
}

// parseXML parses a document.
func parseXML(raw []byte) (*element, error) {
	dec := xml.NewDecoder(bytes.NewReader(raw))
	top := &element{}
	stack := []*element{top}
	count := 0
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		line, _ := dec.InputPos()
		if err != nil {
			return nil, fmt.Errorf("topology XML: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			count++
			if count > maxNodes || len(stack) > maxDepth || len(t.Attr) > maxXMLAttributes {
				return nil, fmt.Errorf("topology XML, line %d: more than %d elements, %d levels of nesting, or %d attributes",
					line, maxNodes, maxDepth, maxXMLAttributes)
			}
			e := &element{name: t.Name.Local, line: line, attrs: map[string]string{}}
			for _, a := range t.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			parent := stack[len(stack)-1]
			parent.children = append(parent.children, e)
			stack = append(stack, e)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		}
	}
	if len(top.children) != 1 || top.children[0].name != "system" {
		return nil, errors.New("topology XML: expected one <system> element, as NCCL_TOPO_DUMP_FILE writes it")
	}
	return top.children[0], nil
}

func (e *element) errorf(format string, args ...any) error {
	return fmt.Errorf("topology XML, line %d, <%.40s>: %s", e.line, e.name, fmt.Sprintf(format, args...))
}

// integer parses an attribute, decimal or with 0x. For a missing or empty one it returns absent.
func (e *element) integer(name string, absent int) (int, error) {
	s := e.attrs[name]
	if s == "" {
		return absent, nil
	}
	v, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		return 0, e.errorf("%s=%.40q is not a 32-bit number", name, s)
	}
	return int(v), nil
}

// numbers parses several attributes of an element and keeps the first error.
type numbers struct {
	e   *element
	err error
}

func (n *numbers) integer(name string, absent int) int {
	if n.err != nil {
		return absent
	}
	var v int
	v, n.err = n.e.integer(name, absent)
	return v
}

// count parses an integer that must not be negative.
func (n *numbers) count(name string) int {
	v := n.integer(name, 0)
	if n.err == nil && v < 0 {
		n.err = n.e.errorf("%s=%q is below 0", name, n.e.attrs[name])
	}
	return v
}

func (n *numbers) float(name string) float64 {
	s := n.e.attrs[name]
	if n.err != nil || s == "" {
		return 0
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v < 1e9) {
		n.err = n.e.errorf("%s=%.40q is not a number from 0 to 1e9", name, s)
		return 0
	}
	return v
}
