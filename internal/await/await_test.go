package await

import "testing"

func TestAChildEndsBeforeItsTestsDo(t *testing.T) {
	ctx, cancel := Child(t)
	defer cancel()
	child, childIsLimited := ctx.Deadline()
	tests, testsAreLimited := t.Deadline()
	if childIsLimited != testsAreLimited || testsAreLimited && !child.Before(tests) {
		t.Errorf("the child's limit is %v (%t), the tests' is %v (%t)", child, childIsLimited, tests, testsAreLimited)
	}
}
