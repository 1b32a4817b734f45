package hostile

import (
	"railhead/client/tests/harness"
	"railhead/internal/await"
)

const (
	patience = await.Patience
	page     = harness.Page
)

var (
	nothingLeaks = harness.NothingLeaks
	inParallel   = harness.InParallel
	wantError    = harness.WantError
	encode       = harness.Encode
	name         = harness.Name
	mapOwned     = harness.MapOwned
	ownMemfd     = harness.OwnMemfd
)
