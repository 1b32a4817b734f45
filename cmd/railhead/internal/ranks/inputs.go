package ranks

import (
	"os"

	"railhead/client"
	"railhead/engine/plan"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// InputsFor are ones whose reduction can be foretold: where the additions go in another order than the ranks', only exact sums can.
func InputsFor(op ncclstyle.Operation, c *client.Comm, bytes uint64) (oracle.Inputs, error) {
	algorithm, _, err := c.Choice(string(op), bytes, false) // between windows every algorithm adds in the order of the ranks
	if reproducible := os.Getenv("RAILHEAD_REPRODUCIBLE") != "off"; err == nil && !plan.InRankOrder(op.Command(), algorithm, reproducible) {
		return oracle.Exact, nil
	}
	return oracle.Ordered, err
}
