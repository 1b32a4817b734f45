package harness

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// InParallel calls f(0)..f(n-1) concurrently and returns their results.
func InParallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

// WantError reports an error unless err has that result and its message contains all the words.
func WantError(t testing.TB, err error, result wire.Result, words ...string) {
	t.Helper()
	if err := Refused("the call", err, result, words...); err != nil {
		t.Error(err)
	}
}

// Refused returns an error unless err has that result and its message contains all the words. what names the call.
func Refused(what string, err error, result wire.Result, words ...string) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Result != result {
		return fmt.Errorf("%s gave %v, want %s", what, err, result)
	}
	return Missing(what, e.Message, words...)
}

// Missing returns an error if a message lacks one of the words.
func Missing(what, message string, words ...string) error {
	for _, w := range words {
		if !strings.Contains(message, w) {
			return fmt.Errorf("%s: the message lacks %q: %s", what, w, message)
		}
	}
	return nil
}
