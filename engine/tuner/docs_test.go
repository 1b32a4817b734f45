package tuner

import (
	"os"
	"strings"
	"testing"
)

func TestTheExamplesOfTheDocumentAreAccepted(t *testing.T) {
	raw, err := os.ReadFile("../../docs/tuning.md")
	if err != nil {
		t.Fatal(err)
	}
	machines, tables := 0, 0
	for _, block := range strings.Split(string(raw), "```json\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		if strings.Contains(text, "fingerprint") {
			tables++
			_, err = ParseTable([]byte(text), someAlgorithms)
		} else {
			machines++
			_, err = ParseMachine([]byte(text))
		}
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	if machines != 2 || tables != 1 {
		t.Errorf("%d machines and %d tables in docs/tuning.md", machines, tables)
	}
}
