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

// element is an XML element without its text, which NCCL's dialect does not use.
type element struct {
	name     string
	line     int
	attrs    map[string]string
	children []*element
}

// parseXML reads one document into a tree.
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
				return nil, fmt.Errorf("topology XML, line %d: more than %d elements, %d in each other, or %d attributes",
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

// integer reads an attribute, in decimal or with 0x; absent or empty is the default.
func (e *element) integer(name string, absent int) (int, error) {
	s := e.attrs[name]
	if s == "" {
		return absent, nil
	}
	v, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		return 0, e.errorf("%s=%.40q is not a number of 32 bits", name, s)
	}
	return int(v), nil
}

// numbers reads several attributes and stops at the first error. It keeps the readers of elements short.
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

// count is an integer that may not be negative.
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
