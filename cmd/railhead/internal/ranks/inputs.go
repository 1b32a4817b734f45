package ranks

import (
	"os"

	"railhead/client"
	"railhead/engine/plan"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// InputsFor returns inputs for which the result of a reduction is known. If the algorithm does not add in rank order, only sums that
// are exact in any order are.
func InputsFor(op ncclstyle.Operation, c *client.Comm, bytes uint64) (oracle.Inputs, error) {
	algorithm, _, err := c.Choice(string(op), bytes, false) // pull, the algorithm between windows, adds in rank order
	if reproducible := os.Getenv("RAILHEAD_REPRODUCIBLE") != "off"; err == nil && !plan.InRankOrder(op.Command(), algorithm, reproducible) {
		return oracle.Exact, nil
	}
	return oracle.Ordered, err
}
