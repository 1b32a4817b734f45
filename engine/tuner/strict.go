package tuner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// decodeStrict decodes exactly one JSON value. Unknown fields are errors. Errors name the line.
func decodeStrict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return lineError(raw, d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("line %d: more than one JSON value; keep only the first", lineOf(raw, d.InputOffset()))
	}
	return nil
}

// lineError adds the line to an error of encoding/json, which has an offset at best.
func lineError(raw []byte, offset int64, err error) error {
	var syntax *json.SyntaxError
	var typed *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: not JSON: %w", lineOf(raw, syntax.Offset), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: the file ends early", lineOf(raw, int64(len(raw))))
	case errors.As(err, &typed):
		where := "the file"
		if typed.Field != "" {
			where = "field " + typed.Field
		}
		return fmt.Errorf("line %d: %s: a JSON %s cannot be %s", lineOf(raw, typed.Offset), where, typed.Value, typed.Type)
	}
	// An unknown field. The decoder is at the end of the value, so find the field by its name.
	var name string
	if n, _ := fmt.Sscanf(err.Error(), "json: unknown field %q", &name); n == 1 {
		if at := bytes.Index(raw, []byte(`"`+name+`"`)); at >= 0 {
			offset = int64(at)
		}
		return fmt.Errorf("line %d: field %.40q is not known", lineOf(raw, offset), name)
	}
	return fmt.Errorf("line %d: %w", lineOf(raw, offset), err)
}

// lineOf is the line of a byte, counted from 1.
func lineOf(raw []byte, offset int64) int {
	return 1 + bytes.Count(raw[:min(max(offset, 0), int64(len(raw)))], []byte("\n"))
}
