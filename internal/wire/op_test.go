package wire

import (
	"encoding/json"
	"testing"
)

func TestOperationsAreWordsInJSON(t *testing.T) {
	for n := range Ops + 2 {
		op := Op(n)
		text, err := json.Marshal(op)
		if err != nil || string(text) != `"`+op.String()+`"` {
			t.Fatalf("%d: %s, %v", n, text, err)
		}
		var back Op
		if err := json.Unmarshal(text, &back); err != nil || back != op {
			t.Errorf("%s: read as %d, %v", text, back, err)
		}
	}
	for _, text := range []string{`"nosuch"`, `""`, `"op_"`, `"op_-1"`, `"3"`, `"op_4294967296"`} {
		var op Op
		if err := json.Unmarshal([]byte(text), &op); err == nil {
			t.Errorf("%s is read as %d", text, op)
		}
	}
}
