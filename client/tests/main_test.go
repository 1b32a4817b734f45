package tests

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // parallel tests wait for deadlines
		panic(err)
	}
	os.Exit(m.Run())
}
