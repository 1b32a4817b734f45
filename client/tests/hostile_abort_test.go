package tests

import (
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
)

// Every rank can write the abort word. Whatever its value, a call that did not run must fail.
func TestAnAbortWordWithoutAValidResultIsAProtocolError(t *testing.T) {
	for _, word := range []byte{0, 251} {
		path := startFake(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
			if _, err := unix.Pwrite(answers[0].fds[0], []byte{word, 1}, wire.AbortOffset); err != nil {
				f.t.Error(err)
			}
			return answers
		}))
		c, leave := joinFake(t, path, 1)
		wantError(t, c.Barrier(), wire.ResultProtocol, "rank 0 of group \"fake\"", "abort word")
		if st, err := c.Status(); err != nil || st.Result != wire.ResultProtocol {
			t.Errorf("status: %+v, %v", st, err)
		}
		leave()
	}
}
