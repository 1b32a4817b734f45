package alltoall

import (
	"encoding/json"
	"testing"
)

type named struct {
	M Mode
	S ScaleFormat
	A Arrangement
}

func TestEnumsAreWordsInJSON(t *testing.T) {
	for _, want := range []string{
		`{"M":"ll","S":"f32","A":"padded"}`, `{"M":"ht","S":"ue8m0","A":"flat"}`, `{"M":"ll","S":"static","A":"tokens"}`,
	} {
		var v named
		if err := json.Unmarshal([]byte(want), &v); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	}
	if v := (named{HT, ScaleStatic, Tokens}); v.M.String() != "ht" || v.S.String() != "static" || v.A.String() != "tokens" {
		t.Errorf("%+v", v)
	}
}

func TestWordsThatAreNoEnumAreRefused(t *testing.T) {
	for _, text := range []string{`{"M":""}`, `{"M":"LL"}`, `{"S":"2"}`, `{"A":"rows"}`} {
		var v named
		if err := json.Unmarshal([]byte(text), &v); err == nil {
			t.Errorf("%s: %+v", text, v)
		}
	}
	if got := Mode(0).String() + Mode(-1).String() + Arrangement(3).String(); got != "0-13" {
		t.Errorf("unknown values: %q", got)
	}
}
