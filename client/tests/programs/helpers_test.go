package programs

import (
	"railhead/client/tests/harness"
	"railhead/internal/await"
)

const patience = await.Patience

var (
	startDaemon   = harness.StartDaemon
	eventually    = await.True
	nothingLeaks  = harness.NothingLeaks
	inParallel    = harness.InParallel
	ranksThatCame = harness.RanksThatCame
)
